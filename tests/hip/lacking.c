/* lacking.c: a libamdhip64.so so old that it has little: what there is must be found, and what is missing named. */
__attribute__((visibility("default"))) int hipInit(unsigned flags);
__attribute__((visibility("default"))) const char *hipGetErrorName(int error);

int hipInit(unsigned flags) { return (int)flags; }
const char *hipGetErrorName(int error) { return error != 0 ? "an error" : "none"; }
