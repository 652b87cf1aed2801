#define _GNU_SOURCE

#include "isr_device.h"

#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

uint8_t *isr_map(int fd, size_t size)
{
    void *start = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    return start == MAP_FAILED ? NULL : start;
}

void isr_unmap(uint8_t *start, size_t size)
{
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
