/* Modules of Debian's static libpython that nothing here imports, and whose libraries would ask for a newer C library
   than the hosts have: libexpat of Debian 12 wants glibc 2.36. The linker finds these first, so neither module nor
   library gets into the program, and an import says so. */
#include <Python.h>

PyMODINIT_FUNC PyInit_pyexpat(void)
{
    PyErr_SetString(PyExc_ImportError, "pyexpat is left out of the compiled program");
    return NULL;
}
