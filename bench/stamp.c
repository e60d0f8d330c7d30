/* The job of the benchmarks: says when it was executed, in one record that it appends to a file, and ends.

   stamp SCRIPT NUMBER MILLISECONDS FILE [...]: stands in for a site's interpreter, so it is given the script first.
   The record is 16 bytes in the machine's order: CLOCK_REALTIME in nanoseconds, NUMBER. Then it lives for MILLISECONDS.
   With fewer arguments it ends at once. BARE is without libc, whose
   start would take three quarters of the time. */

#include <fcntl.h>
#include <stdint.h>
#include <time.h>

#ifdef BARE /* x86-64 without libc */

#include <sys/syscall.h>

static long call(long number, long a, long b, long c)
{
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
    return result;
}

#define clock_gettime(clock, now) call(SYS_clock_gettime, clock, (long)(now), 0)
#define nanosleep(time, rest) call(SYS_nanosleep, (long)(time), (long)(rest), 0)
#define open(path, flags) call(SYS_open, (long)(path), flags, 0)
#define write(fd, data, size) call(SYS_write, fd, (long)(data), size)

#else
#include <unistd.h>
#endif

static uint64_t number_of(const char *text)
{
    uint64_t number = 0;
    for (; *text >= '0' && *text <= '9'; text++)
        number = number * 10 + (uint64_t)(*text - '0');
    return number;
}

static int run(long argc, char **argv)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (argc < 5)
        return 0;
    uint64_t record[2] = {(uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec, number_of(argv[2])};
    long file = open(argv[4], O_WRONLY | O_APPEND);
    if (file < 0 || write(file, record, sizeof record) != sizeof record)
        return 1;
    uint64_t ms = number_of(argv[3]);
    struct timespec life = {(time_t)(ms / 1000), (long)(ms % 1000) * 1000000};
    if (ms > 0)
        nanosleep(&life, 0);
    return 0;
}

#ifdef BARE /* x86-64 without libc */

__attribute__((used)) static void start(long *stack)
{
    call(SYS_exit_group, run(stack[0], (char **)(stack + 1)), 0, 0);
    __builtin_unreachable();
}

__asm__(".globl _start\n_start:\n xor %ebp, %ebp\n mov %rsp, %rdi\n and $-16, %rsp\n call start\n");

#else

int main(int argc, char **argv)
{
    return run(argc, argv);
}

#endif
