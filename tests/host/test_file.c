/* test_file.c: whole files in, whole files out, and after a failure the old file and nothing else. */
#define _GNU_SOURCE /* mkdtemp under strict C */
#include "host_test.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "host/file.h"

static char folder[] = "/tmp/octavo_file_XXXXXX";

static const char *in_folder(const char *name)
{
    static char paths[4][256];
    static int next;
    char *path = paths[next++ % 4];
    snprintf(path, sizeof(paths[0]), "%s/%s", folder, name);
    return path;
}

static int n_entries(void)
{
    int n = 0;
    DIR *d = opendir(folder);
    assert_non_null(d);
    for (const struct dirent *e = readdir(d); e != NULL; e = readdir(d)) {
        n += strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0;
    }
    closedir(d);
    return n;
}

static int make_folder(void **state)
{
    (void)state;
    return mkdtemp(folder) == NULL;
}

static int remove_folder(void **state)
{
    (void)state;
    char command[64];
    snprintf(command, sizeof(command), "rm -r %s", folder);
    return system(command);
}

/* ---- an allocator that counts ------------------------------------------------------------------------------------------- */

static size_t live_bytes, n_made, fail_at;

static void *counting_alloc(void *user, size_t size_bytes, size_t align)
{
    void *memory = NULL;
    (void)user;
    if (++n_made == fail_at || posix_memalign(&memory, align, size_bytes) != 0) {
        return NULL;
    }
    live_bytes += size_bytes;
    return memory;
}

static void counting_free(void *user, void *memory, size_t size_bytes)
{
    (void)user;
    live_bytes -= size_bytes;
    free(memory);
}

static const oct__allocator counting = { counting_alloc, counting_free, NULL };

/* ---- reading ------------------------------------------------------------------------------------------------------------ */

static void write_raw(const char *path, const void *data, size_t n)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, n, file), n);
    assert_int_equal(fclose(file), 0);
}

static void check_read(const char *path, const void *expected, size_t n)
{
    char *data;
    size_t size;
    oct_error error = OCT_ERROR_INIT;
    if (oct__file_read(&counting, path, n, &data, &size, &error) != OCT_OK) {
        fail_msg("%s", error.text);
    }
    assert_int_equal(size, n);
    assert_memory_equal(data, expected, n);
    assert_int_equal(data[n], '\0');
    oct__file_release(&counting, data, size);
    assert_int_equal(live_bytes, 0);
}

static void files_are_read_whole(void **state)
{
    (void)state;
    static char bytes[300000];
    for (size_t i = 0; i < sizeof(bytes); i++) {
        bytes[i] = (char)(i * 7);
    }
    static const size_t sizes[] = { 0, 1, 2, 4095, 4096, 4097, 65535, 65536, 300000 };
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        write_raw(in_folder("read"), bytes, sizes[i]);
        check_read(in_folder("read"), bytes, sizes[i]);
    }
}

static void *feed(void *arg)
{
    FILE *pipe = fopen(arg, "w");
    for (int i = 0; pipe != NULL && i < 100000; i++) {
        fputc('x', pipe);
    }
    if (pipe != NULL) {
        fclose(pipe);
    }
    return NULL;
}

static void pipes_are_read_whole(void **state)
{
    (void)state;
    char path[256], *data;
    size_t size;
    pthread_t feeder;
    snprintf(path, sizeof(path), "%s", in_folder("pipe"));
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(pthread_create(&feeder, NULL, feed, path), 0);
    assert_int_equal(oct__file_read(&counting, path, 1u << 20, &data, &size, NULL), OCT_OK);
    pthread_join(feeder, NULL);
    assert_int_equal(size, 100000);
    oct__file_release(&counting, data, size);
    assert_int_equal(live_bytes, 0);
}

static void what_cannot_be_read_is_named(void **state)
{
    (void)state;
    char *data = NULL;
    size_t size;
    oct_error error = OCT_ERROR_INIT;
    const char *missing = in_folder("missing");
    assert_int_equal(oct__file_read(&counting, missing, 10, &data, &size, &error), OCT_IO_ERROR);
    assert_non_null(strstr(error.text, missing));
    assert_non_null(strstr(error.text, strerror(ENOENT)));
    assert_int_equal(oct__file_read(&counting, folder, 10, &data, &size, &error), OCT_IO_ERROR);
    assert_non_null(strstr(error.text, strerror(EISDIR)));
    write_raw(in_folder("eleven"), "12345678901", 11);
    assert_int_equal(oct__file_read(&counting, in_folder("eleven"), 10, &data, &size, &error), OCT_BAD_DATA);
    assert_non_null(strstr(error.text, "eleven"));
    assert_non_null(strstr(error.text, "11 bytes"));
    /* /proc says 0 bytes and then gives more. */
    assert_int_equal(oct__file_read(&counting, "/proc/self/maps", 10, &data, &size, &error), OCT_BAD_DATA);
    assert_int_equal(oct__file_read(&counting, "/dev/zero", 1u << 20, &data, &size, &error), OCT_BAD_DATA);
    assert_null(data);
    assert_int_equal(live_bytes, 0);
}

static void every_failing_allocation_is_survived(void **state)
{
    (void)state;
    char *data;
    size_t size;
    oct_status status = OCT_OUT_OF_MEMORY;
    for (fail_at = 1; status != OCT_OK; fail_at++) {
        n_made = 0;
        status = oct__file_read(&counting, "/proc/self/maps", 1u << 24, &data, &size, NULL);
        assert_true(status == OCT_OK || status == OCT_OUT_OF_MEMORY);
        if (status == OCT_OK) {
            oct__file_release(&counting, data, size);
        }
        assert_int_equal(live_bytes, 0);
    }
    assert_true(fail_at > 2);
    fail_at = 0;
}

/* ---- writing ------------------------------------------------------------------------------------------------------------ */

static void files_are_written_whole_and_replaced(void **state)
{
    (void)state;
    char path[256];
    struct stat about;
    snprintf(path, sizeof(path), "%s", in_folder("written"));
    const int before = n_entries();
    assert_int_equal(oct__file_write(path, "first", 5, NULL), OCT_OK);
    check_read(path, "first", 5);
    assert_int_equal(stat(path, &about), 0);
    const mode_t mask = umask(0);
    umask(mask);
    assert_int_equal(about.st_mode & 0777, 0666 & ~mask);   /* what open() gives, not what mkstemp() does */
    assert_int_equal(chmod(path, 0640), 0);
    assert_int_equal(oct__file_write(path, "", 0, NULL), OCT_OK);
    check_read(path, "", 0);
    assert_int_equal(stat(path, &about), 0);
    assert_int_equal(about.st_mode & 0777, 0640);
    assert_int_equal(n_entries(), before + 1);   /* no temporary left */
}

static void a_link_stays_a_link(void **state)
{
    (void)state;
    char link[256], target[256];
    struct stat about;
    snprintf(link, sizeof(link), "%s", in_folder("link"));
    snprintf(target, sizeof(target), "%s", in_folder("target"));
    write_raw(target, "old", 3);
    assert_int_equal(symlink("target", link), 0);
    assert_int_equal(oct__file_write(link, "new", 3, NULL), OCT_OK);
    assert_int_equal(lstat(link, &about), 0);
    assert_true(S_ISLNK(about.st_mode));
    check_read(target, "new", 3);
}

static void a_relative_path_works(void **state)
{
    (void)state;
    char before[4096];
    assert_non_null(getcwd(before, sizeof(before)));
    assert_int_equal(chdir(folder), 0);
    assert_int_equal(oct__file_write("relative", "here", 4, NULL), OCT_OK);
    assert_int_equal(chdir(before), 0);
    check_read(in_folder("relative"), "here", 4);
}

/* What strangers name: of an open folder, for the owner alone, and a link of that name is replaced where oct__file_write would follow it. */
static void names_in_a_folder_follow_no_link(void **state)
{
    (void)state;
    struct stat about;
    oct_error error = OCT_ERROR_INIT;
    const int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_true(fd >= 0);
    write_raw(in_folder("victim"), "kept", 4);
    assert_int_equal(symlink("victim", in_folder("named")), 0);
    const int before = n_entries();
    assert_int_equal(oct__file_write_in(fd, "named", "new", 3, NULL), OCT_OK);
    assert_int_equal(lstat(in_folder("named"), &about), 0);
    assert_true(S_ISREG(about.st_mode));
    assert_int_equal(about.st_mode & 0777, 0600);
    assert_int_equal(chmod(in_folder("named"), 0666), 0);
    assert_int_equal(oct__file_write_in(fd, "named", "newer", 5, NULL), OCT_OK);
    assert_int_equal(lstat(in_folder("named"), &about), 0);
    assert_int_equal(about.st_mode & 0777, 0600);
    check_read(in_folder("named"), "newer", 5);
    check_read(in_folder("victim"), "kept", 4);
    assert_int_equal(mkdir(in_folder("named_folder"), 0700), 0);
    assert_int_equal(oct__file_write_in(fd, "named_folder", "x", 1, &error), OCT_IO_ERROR);
    assert_null(strstr(error.text, folder));   /* nobody is told where it is */
    assert_int_equal(n_entries(), before + 1);
    close(fd);
}

static void what_is_no_file_is_written_directly(void **state)
{
    (void)state;
    struct stat about;
    oct_error error = OCT_ERROR_INIT;
    assert_int_equal(oct__file_write("/dev/null", "gone", 4, NULL), OCT_OK);
    assert_int_equal(stat("/dev/null", &about), 0);
    assert_true(S_ISCHR(about.st_mode));
    /* A full disk. */
    assert_int_equal(oct__file_write("/dev/full", "gone", 4, &error), OCT_IO_ERROR);
    assert_non_null(strstr(error.text, "/dev/full"));
    assert_non_null(strstr(error.text, strerror(ENOSPC)));
    assert_int_equal(stat("/dev/full", &about), 0);
    assert_true(S_ISCHR(about.st_mode));
}

static void a_failed_write_leaves_the_old_file_and_nothing_else(void **state)
{
    (void)state;
    char path[256];
    static char large[100000];
    oct_error error = OCT_ERROR_INIT;
    snprintf(path, sizeof(path), "%s", in_folder("kept"));
    assert_int_equal(oct__file_write(path, "old", 3, NULL), OCT_OK);
    const int before = n_entries();

    /* The disk fills half-way: a limit on file sizes does the same to write(). */
    struct rlimit limit, small;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    small = limit;
    small.rlim_cur = 10000;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    const oct_status status = oct__file_write(path, large, sizeof(large), &error);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    assert_int_equal(status, OCT_IO_ERROR);
    assert_non_null(strstr(error.text, path));
    check_read(path, "old", 3);
    assert_int_equal(n_entries(), before);

    assert_int_equal(oct__file_write(in_folder("no_such_folder/x"), "x", 1, &error), OCT_IO_ERROR);
    assert_non_null(strstr(error.text, "no_such_folder"));
    assert_int_equal(oct__file_write(folder, "x", 1, &error), OCT_IO_ERROR);
    char longest[5000];
    memset(longest, 'x', sizeof(longest));
    longest[sizeof(longest) - 1] = '\0';
    assert_int_equal(oct__file_write(longest, "x", 1, &error), OCT_INVALID_ARGUMENT);
    assert_int_equal(n_entries(), before);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(files_are_read_whole),
        cmocka_unit_test(pipes_are_read_whole),
        cmocka_unit_test(what_cannot_be_read_is_named),
        cmocka_unit_test(every_failing_allocation_is_survived),
        cmocka_unit_test(files_are_written_whole_and_replaced),
        cmocka_unit_test(a_link_stays_a_link),
        cmocka_unit_test(a_relative_path_works),
        cmocka_unit_test(names_in_a_folder_follow_no_link),
        cmocka_unit_test(what_is_no_file_is_written_directly),
        cmocka_unit_test(a_failed_write_leaves_the_old_file_and_nothing_else),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
