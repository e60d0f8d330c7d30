/* What tests of tree.c put in the place of two calls: an error of openat2, and something that happens in realpath. */

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <unistd.h>

int openat2_fails_with;
void (*in_realpath)(void);

long hooked_syscall(long number, long first, const char *path, void *how, size_t size)
{
    if (openat2_fails_with != 0) {
        errno = openat2_fails_with;
        return -1;
    }
    return syscall(number, first, path, how, size);
}

char *hooked_realpath(const char *path, char *resolved)
{
    char *found = realpath(path, resolved);
    if (in_realpath != NULL)
        in_realpath();
    return found;
}
