/* lacking.c: a libcuda.so.1 so old that it has little: what there is must be found, and what is missing named. */
__attribute__((visibility("default"))) int cuInit(unsigned flags);
__attribute__((visibility("default"))) int cuGetErrorName(int error, const char **name);

int cuInit(unsigned flags) { return (int)flags; }

int cuGetErrorName(int error, const char **name)
{
    *name = "an error";
    return error != 0;
}
