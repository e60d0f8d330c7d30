#include "fault.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>

struct fault fault;

static int noted(enum kind kind, const char *format, va_list values)
{
    fault.kind = kind;
    fault.number = 0;
    vsnprintf(fault.text, sizeof fault.text, format, values);
    return -1;
}

int failed(void)
{
    fault.kind = FAILED;
    fault.number = errno;
    fault.text[0] = '\0';
    return -1;
}

int refused(const char *format, ...)
{
    va_list values;
    va_start(values, format);
    int result = noted(REFUSED, format, values);
    va_end(values);
    return result;
}

int busy(const char *text)
{
    fault.kind = BUSY;
    fault.number = 0;
    snprintf(fault.text, sizeof fault.text, "%s", text);
    return -1;
}

int not_us(const char *format, ...)
{
    va_list values;
    va_start(values, format);
    int result = noted(NOT_US, format, values);
    va_end(values);
    return result;
}
