/* Runs a fuzz target once over every file of a folder: the regression half of fuzzing, for any compiler.
 * Owns nothing else; one thread. Exit 0 when every input came back, 1 when the folder gave none. */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int run_file(const char *path)
{
    FILE *file = fopen(path, "rb");
    if (!file)
        return 0;
    uint8_t *data = NULL;
    size_t size = 0, capacity = 0;
    for (;;) {
        if (size == capacity) {
            capacity = capacity ? 2 * capacity : 4096;
            uint8_t *grown = realloc(data, capacity);
            if (!grown) {
                fclose(file);
                free(data);
                return 0;
            }
            data = grown;
        }
        size_t n = fread(data + size, 1, capacity - size, file);
        if (n == 0)
            break;
        size += n;
    }
    fclose(file);

    /* An allocation of exactly the input's size, so that a read past its end is seen by memory checkers. */
    uint8_t *exact = malloc(size ? size : 1);
    if (!exact) {
        free(data);
        return 0;
    }
    memcpy(exact, data, size);
    free(data);
    LLVMFuzzerTestOneInput(exact, size);
    free(exact);
    return 1;
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: %s FOLDER\n", argv[0]);
        return 2;
    }
    DIR *folder = opendir(argv[1]);
    if (!folder) {
        perror(argv[1]);
        return 1;
    }
    int n_inputs = 0, n_failed = 0;
    struct dirent *entry;
    while ((entry = readdir(folder)) != NULL) {
        char path[4096];
        struct stat status;
        int length = snprintf(path, sizeof path, "%s/%s", argv[1], entry->d_name);
        if (length < 0 || (size_t)length >= sizeof path || stat(path, &status) != 0 || !S_ISREG(status.st_mode))
            continue;
        if (!run_file(path)) {
            fprintf(stderr, "%s: cannot be read\n", path);
            n_failed++;
        }
        n_inputs++;
    }
    closedir(folder);
    printf("%d inputs\n", n_inputs);
    return n_inputs == 0 || n_failed != 0;
}
