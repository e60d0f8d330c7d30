/* The job's child: from its start by the keeper, through the privilege drop, to the execve of the program.

   The keeper starts it before there is a job for it, and tells it by messages what to do next: become a site, open what
   the job needs, execute. Everything that belongs to the site is opened after the drop, as the site; whatever then goes
   wrong is told to the keeper, never left to an exit code. Which program runs, and how, is the keeper's to decide:
   privexec/child.py is the other end, privexec/job.py says what is opened and executed. */

#include "fault.h"
#include "identity.h"
#include "message.h"
#include "tree.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define OPTIONS_FILE 4 /* where a sandbox's program finds its options; taken from the start, so that nothing else is there */
#define FIRST_PLACE 16 /* what a sandbox shows has descriptors from here on */
/* What is wrong, instead of a wish's number. */
#define IDENTITY (-1L)
#define PROGRAM (-2L)

static bool has_become;
static struct tree tree;
static int log_file = -1;
static struct message answer;

/* Tell what cannot be done, and end. */
static _Noreturn void give_up(long wish)
{
    static const char *const kinds[] = {[FAILED] = "failed", [REFUSED] = "refused", [BUSY] = "busy", [NOT_US] = "not us"};
    begin(&answer, "fault");
    add_number(&answer, wish);
    add(&answer, kinds[fault.kind]);
    if (fault.kind == FAILED)
        add_number(&answer, fault.number);
    else
        add(&answer, fault.text);
    send_to_keeper(&answer, -1);
    end();
}

/* Return the next string as a uid or GID; -1 would mean "as it is" to the kernel. */
static uid_t id(void)
{
    unsigned long found = number();
    if (found >= UINT32_MAX)
        end();
    return (uid_t)found;
}

/* become CHANGES UID CGROUP_PROCS GROUP... */
static void become(int step_log)
{
    static struct identity who;
    char warning[256];
    if (has_become)
        end();
    who.changes = number() != 0;
    who.uid = id();
    who.cgroup_procs = word();
    do {
        if (who.group_count == MOST_GROUPS)
            end();
        who.groups[who.group_count++] = id();
    } while (has_word());
    if (drop(&who, warning, sizeof warning) != 0)
        give_up(IDENTITY);
    has_become = true;
    log_file = step_log;
    if (warning[0] != '\0') {
        begin(&answer, "warning");
        add(&answer, warning);
        send_to_keeper(&answer, -1);
    }
}

/* The wishes of an `open` message. Each takes what belongs to it and adds its result to the answer. */

static int added(const char *result)
{
    add(&answer, result);
    return 0;
}

static int make_tree(void)
{
    int result = 0;
    tree.jailed = number() != 0;
    tree.count = 0;
    unsigned long count = number();
    if (tree.jailed && count != 1)
        end();
    for (; count > 0; count--)
        if (open_root(&tree, word()) != 0)
            result = -1;
    return result;
}

static int enter(const char *path)
{
    int directory = open_in(&tree, path, O_PATH | O_DIRECTORY);
    if (directory < 0)
        return -1;
    int result = fchdir(directory);
    close(directory);
    return result == 0 ? 0 : failed();
}

/* tree JAILED COUNT ROOT... */
static int wish_tree(void)
{
    return make_tree() == 0 ? added("") : -1;
}

/* log PATH GROUP: told at once, so that every later reason can be written where the request's owner looks for it. */
static int wish_log(void)
{
    static struct message opened;
    bool readable;
    struct stat facts;
    const char *path = word();
    log_file = open_log(&tree, path, id(), &readable);
    if (log_file < 0)
        return -1;
    if (fstat(log_file, &facts) != 0)
        return failed();
    begin(&opened, "log");
    add_number(&opened, readable);
    add_number(&opened, (long)facts.st_size);
    send_to_keeper(&opened, log_file);
    return added("");
}

/* enter PATH */
static int wish_enter(void)
{
    return enter(word()) == 0 ? added("") : -1;
}

/* try JAILED COUNT ROOT... PATH: enter it, else "/". What has been begun is finished, whatever the job has done to its
   directories. */
static int wish_try(void)
{
    int opened = make_tree();
    bool inside = enter(word()) == 0 && opened == 0;
    if (!inside && chdir("/") != 0)
        return failed();
    return added(inside ? "1" : "0");
}

/* directory PATH */
static int wish_directory(void)
{
    int directory = open_in(&tree, word(), O_PATH | O_DIRECTORY);
    if (directory < 0)
        return -1;
    close(directory);
    return added("");
}

/* translate PATH */
static int wish_translate(void)
{
    char path[PATH_MAX];
    return host_path(&tree, word(), path) == 0 ? added(path) : -1;
}

/* program PATH */
static int wish_program(void)
{
    return require_file(word(), X_OK) == 0 ? added("") : -1;
}

/* script PATH */
static int wish_script(void)
{
    return require_file(word(), R_OK) == 0 ? added("") : -1;
}

/* roots PATH */
static int wish_roots(void)
{
    return require_roots_own(word()) == 0 ? added("") : -1;
}

/* private PATH */
static int wish_private(void)
{
    return added(is_private(word()) ? "1" : "0");
}

/* cache PATH */
static int wish_cache(void)
{
    const char *path = word();
    mkdir(path, 0700); /* whatever comes of that, what is there then decides */
    return added(is_private(path) ? "1" : "0");
}

/* A place of the host that a sandbox shows, told as NUMBER:PATH. */
static int add_place(int found)
{
    char path[PATH_MAX], text[PATH_MAX + 24];
    int place = fcntl(found, F_DUPFD_CLOEXEC, FIRST_PLACE);
    if (place < 0)
        return failed();
    close(found);
    if (path_of(place, path) != 0)
        return -1;
    snprintf(text, sizeof text, "%d:%s", place, path);
    return added(text);
}

/* here: the directory that has been entered. */
static int wish_here(void)
{
    int found = open(".", O_PATH | O_DIRECTORY | O_CLOEXEC);
    return found >= 0 ? add_place(found) : failed();
}

/* place PATH PREFIX */
static int wish_place(void)
{
    const char *path = word();
    int found = open_place(path, word());
    return found >= 0 ? add_place(found) : -1;
}

static const struct {
    const char *name;
    int (*fulfil)(void);
} wishes[] = {
    {"tree", wish_tree},           {"log", wish_log},         {"enter", wish_enter},     {"try", wish_try},
    {"directory", wish_directory}, {"translate", wish_translate}, {"program", wish_program}, {"script", wish_script},
    {"roots", wish_roots},         {"private", wish_private}, {"cache", wish_cache},     {"here", wish_here},
    {"place", wish_place},
};

static int fulfil(const char *name)
{
    for (size_t i = 0; i < sizeof wishes / sizeof *wishes; i++)
        if (strcmp(name, wishes[i].name) == 0)
            return wishes[i].fulfil();
    end();
}

/* open WISH...: the results go to the keeper in as many messages as they need. */
static void open_all(void)
{
    begin(&answer, "found");
    for (long wish = 0; has_word(); wish++) {
        if (is_full(&answer)) {
            send_to_keeper(&answer, -1);
            begin(&answer, "found");
        }
        if (fulfil(word()) != 0)
            give_up(wish);
    }
    send_to_keeper(&answer, -1);
}

static int limit_memory(const char *most)
{
    struct rlimit limit;
    if (most[0] == '\0')
        return 0;
    if (getrlimit(RLIMIT_AS, &limit) != 0)
        return failed();
    rlim_t wanted = strtoull(most, NULL, 10);
    if (wanted < limit.rlim_max)
        limit.rlim_max = wanted;
    limit.rlim_cur = limit.rlim_max;
    return setrlimit(RLIMIT_AS, &limit) == 0 ? 0 : failed();
}

static int standard_descriptors(void)
{
    int in = open("/dev/null", O_RDONLY | O_CLOEXEC);
    int out = log_file >= 0 ? log_file : open("/dev/null", O_WRONLY | O_CLOEXEC);
    return in >= 0 && out >= 0 && dup2(in, 0) == 0 && dup2(out, 1) == 1 && dup2(out, 2) == 2 ? 0 : failed();
}

/* A sandbox's program takes its options from a file, and must outlive SIGTERM: whoever is to tidy up is inside. */
static int hand_options(int options)
{
    if (options < 0)
        return 0;
    return dup2(options, OPTIONS_FILE) == OPTIONS_FILE && signal(SIGTERM, SIG_IGN) != SIG_ERR ? 0 : failed();
}

static int hand_places(void)
{
    int result = 0;
    for (unsigned long count = number(); count > 0; count--)
        if (fcntl((int)number(), F_SETFD, 0) != 0)
            result = failed();
    return result;
}

static const char **words(size_t count)
{
    const char **list = calloc(count + 1, sizeof *list);
    if (list == NULL) {
        failed();
        give_up(PROGRAM);
    }
    for (size_t i = 0; i < count; i++)
        list[i] = word();
    return list;
}

/* execute MEMORY COUNT PLACE... COUNT ARGUMENT... COUNT VARIABLE... */
static _Noreturn void execute(int options)
{
    const char *memory = word();
    int places = hand_places();
    const char **arguments = words(number());
    const char **variables = words(number());
    if (places == 0 && hand_options(options) == 0 && standard_descriptors() == 0 && limit_memory(memory) == 0) {
        execve(arguments[0], (char *const *)arguments, (char *const *)variables);
        failed();
    }
    give_up(PROGRAM);
}

int main(void)
{
    syscall(SYS_close_range, KEEPER + 1, ~0U, 0); /* all of the keeper's close by themselves: none is left to chance */
    if (fcntl(KEEPER, F_SETFD, FD_CLOEXEC) != 0 || open("/dev/null", O_RDONLY | O_CLOEXEC) != OPTIONS_FILE)
        end();
    prctl(PR_SET_NAME, "runner-become"); /* what ps shows: it was executed by its descriptor's number */
    if (prepare() != 0)
        give_up(IDENTITY);
    for (;;) {
        int besides;
        if (receive(&besides) != 0)
            give_up(PROGRAM);
        const char *order = word();
        if (strcmp(order, "become") == 0)
            become(besides);
        else if (has_become && strcmp(order, "open") == 0)
            open_all();
        else if (has_become && strcmp(order, "execute") == 0)
            execute(besides);
        else
            end();
    }
}
