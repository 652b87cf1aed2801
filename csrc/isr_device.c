#define _GNU_SOURCE

#include "isr_device.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

/* A page of a mapped file that is gone when it is touched (the file was cut, or the device fails) is a SIGBUS, which
 * ends the process. Of our own maps the handler puts zeros in the page's place; all other faults are for whoever had
 * the signal before.
 *
 * Entries of the list are reused and never freed, so that the handler can go over it at any time. */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static isr_mapping *all, *unused;
static struct sigaction before;
static int is_watching;
static uintptr_t page_size;

static isr_mapping *holding(uintptr_t address)
{
    isr_mapping *each = __atomic_load_n(&all, __ATOMIC_ACQUIRE);
    for (; each != NULL; each = each->next) {
        uintptr_t start = (uintptr_t)__atomic_load_n(&each->start, __ATOMIC_ACQUIRE);
        if (start != 0 && address >= start && address - start < __atomic_load_n(&each->size, __ATOMIC_ACQUIRE))
            return each;
    }
    return NULL;
}

static void pass_on(int number, siginfo_t *info, void *context)
{
    if (before.sa_flags & SA_SIGINFO) {
        before.sa_sigaction(number, info, context);
    } else if (before.sa_handler == SIG_DFL || before.sa_handler == SIG_IGN) {
        /* The instruction is run again, and fails as if nobody watched. */
        signal(number, SIG_DFL);
        if (info->si_code <= 0)
            raise(number);
    } else {
        before.sa_handler(number);
    }
}

static void on_bus_error(int number, siginfo_t *info, void *context)
{
    int error = errno;
    if (info->si_code == BUS_ADRERR || info->si_code == BUS_OBJERR) {
        uintptr_t page = (uintptr_t)info->si_addr & ~(page_size - 1);
        isr_mapping *mapping = holding((uintptr_t)info->si_addr);
        if (mapping != NULL) {
            __atomic_store_n(&mapping->lost, 1, __ATOMIC_RELEASE);
            void *zeros = mmap((void *)page, page_size, PROT_READ | PROT_WRITE,
                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
            if (zeros != MAP_FAILED) {
                errno = error;
                return;
            }
        }
    }
    errno = error;
    pass_on(number, info, context);
}

static void renew_lock(void)
{
    pthread_mutex_init(&lock, NULL);
}

/* Both with the lock held. */

static int watch(void)
{
    if (is_watching)
        return 0;
    page_size = (uintptr_t)sysconf(_SC_PAGESIZE);
    struct sigaction ours = {.sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    sigemptyset(&ours.sa_mask);
    if (sigaction(SIGBUS, NULL, &before) != 0 || sigaction(SIGBUS, &ours, NULL) != 0)
        return -1;
    /* A thread that is not there in a child may have held it. */
    pthread_atfork(NULL, NULL, renew_lock);
    is_watching = 1;
    return 0;
}

static isr_mapping *take_entry(void)
{
    isr_mapping *entry = unused;
    if (entry != NULL) {
        unused = entry->next_free;
        return entry;
    }
    entry = calloc(1, sizeof *entry);
    if (entry != NULL) {
        entry->next = all;
        __atomic_store_n(&all, entry, __ATOMIC_RELEASE);
    }
    return entry;
}

isr_mapping *isr_map(int fd, size_t size)
{
    void *start = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (start == MAP_FAILED)
        return NULL;
    pthread_mutex_lock(&lock);
    isr_mapping *entry = watch() == 0 ? take_entry() : NULL;
    if (entry != NULL) {
        entry->lost = 0;
        __atomic_store_n(&entry->size, size, __ATOMIC_RELEASE);
        __atomic_store_n(&entry->start, start, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&lock);
    if (entry == NULL) {
        munmap(start, size);
        errno = ENOMEM;
    }
    return entry;
}

void isr_unmap(isr_mapping *mapping)
{
    void *start = mapping->start;
    size_t size = mapping->size;
    pthread_mutex_lock(&lock);
    __atomic_store_n(&mapping->start, NULL, __ATOMIC_RELEASE);
    mapping->next_free = unused;
    unused = mapping;
    pthread_mutex_unlock(&lock);
    munmap(start, size);
}

int isr_sync_filesystem(int fd)
{
#ifdef __linux__
    return syncfs(fd);
#else
    (void)fd;
    errno = ENOSYS;
    return -1;
#endif
}
