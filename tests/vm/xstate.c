// Preloaded into linux.uml: on processors whose register state is larger than its buffer (AMX), the kernel refuses
// PTRACE_SETREGSET with a part of that state. The rest is filled in with what is there already.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <stdarg.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/types.h>
#include <sys/uio.h>

typedef long (*call)(enum __ptrace_request, pid_t, void *, void *);

static call real;

__attribute__((constructor)) static void find(void) { real = (call)dlsym(RTLD_NEXT, "ptrace"); }

long ptrace(enum __ptrace_request request, ...)
{
	static char whole[1 << 16];
	struct iovec all = {whole, sizeof whole};
	va_list arguments;
	va_start(arguments, request);
	pid_t pid = va_arg(arguments, pid_t);
	void *address = va_arg(arguments, void *);
	void *data = va_arg(arguments, void *);
	va_end(arguments);
	if (request == PTRACE_SETREGSET && (long)address == NT_X86_XSTATE) {
		struct iovec *part = data;
		long status = real(PTRACE_GETREGSET, pid, address, &all);
		if (status < 0)
			return status;
		if (part->iov_len < all.iov_len) {
			memcpy(whole, part->iov_base, part->iov_len);
			data = &all;
		}
	}
	return real(request, pid, address, data);
}
