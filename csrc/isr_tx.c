#define _GNU_SOURCE
#include "isr_tx.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>

#define MAX_IOV 64

/* Sends the buffers that stand at the cursor in one call; MSG_MORE when a file range follows. */
static ssize_t send_buffers(int sock, const isr_tx_part *parts, int count, const isr_tx_cursor *cursor)
{
    struct iovec iov[MAX_IOV];
    struct msghdr message = {.msg_iov = iov};
    int at = cursor->part;

    for (; at < count && parts[at].fd < 0 && message.msg_iovlen < MAX_IOV; at++) {
        int64_t skip = at == cursor->part ? cursor->done : 0;
        iov[message.msg_iovlen].iov_base = (char *)parts[at].data + skip;
        iov[message.msg_iovlen].iov_len = (size_t)(parts[at].length - skip);
        message.msg_iovlen++;
    }
    return sendmsg(sock, &message, MSG_NOSIGNAL | MSG_DONTWAIT | (at < count ? MSG_MORE : 0));
}

static ssize_t send_range(int sock, const isr_tx_part *part, int64_t done, int64_t quantum)
{
    off_t offset = (off_t)(part->offset + done);
    int64_t left = part->length - done;

    return sendfile(sock, part->fd, &offset, (size_t)(left < quantum ? left : quantum));
}

static void advance(const isr_tx_part *parts, int count, isr_tx_cursor *cursor, int64_t sent)
{
    cursor->done += sent;
    while (cursor->part < count && cursor->done >= parts[cursor->part].length) {
        cursor->done -= parts[cursor->part].length;
        cursor->part++;
    }
}

static int failure(int error, int in_file)
{
    if (error == EAGAIN || error == EWOULDBLOCK)
        return ISR_TX_BLOCKED;
    if (in_file && (error == EINVAL || error == ENOSYS))
        return ISR_TX_NO_SENDFILE;
    return -error;
}

static int step(int sock, const isr_tx_part *parts, int count, isr_tx_cursor *cursor, int64_t quantum, int64_t *sent)
{
    int64_t left = quantum;

    advance(parts, count, cursor, 0);
    while (cursor->part < count) {
        const isr_tx_part *part = &parts[cursor->part];
        int in_file = part->fd >= 0;
        ssize_t n;

        if (left <= 0)
            return ISR_TX_QUANTUM;
        n = in_file ? send_range(sock, part, cursor->done, left) : send_buffers(sock, parts, count, cursor);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return failure(errno, in_file);
        if (n == 0 && in_file)
            return ISR_TX_TRUNCATED;
        left -= n;
        *sent += n;
        advance(parts, count, cursor, n);
    }
    return ISR_TX_DONE;
}

static int sigpipe_is_ignored(void)
{
    struct sigaction action;

    return sigaction(SIGPIPE, NULL, &action) == 0 && action.sa_handler == SIG_IGN;
}

/* sendfile has no MSG_NOSIGNAL: unless SIGPIPE is ignored anyway (Python does so, but a host program may have
 * changed that), hold it back in this thread and swallow the one that we caused. */
int isr_tx_step(int sock, const isr_tx_part *parts, int count, isr_tx_cursor *cursor, int64_t quantum, int64_t *sent)
{
    const struct timespec now = {0, 0};
    sigset_t pipe_only, before, pending;
    int code;

    if (sigpipe_is_ignored())
        return step(sock, parts, count, cursor, quantum, sent);
    sigemptyset(&pipe_only);
    sigaddset(&pipe_only, SIGPIPE);
    sigpending(&pending);
    pthread_sigmask(SIG_BLOCK, &pipe_only, &before);
    code = step(sock, parts, count, cursor, quantum, sent);
    if (code == -EPIPE && !sigismember(&pending, SIGPIPE))
        while (sigtimedwait(&pipe_only, NULL, &now) < 0 && errno == EINTR)
            ;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return code;
}

static int is_warm(int fd, int64_t offset)
{
    char byte;
    struct iovec iov = {&byte, 1};

    if (preadv2(fd, &iov, 1, (off_t)offset, RWF_NOWAIT) >= 0)
        return 1;
    return errno == EAGAIN ? 0 : -1;
}

int isr_tx_is_warm(int fd, int64_t offset, int64_t length)
{
    int first = is_warm(fd, offset);

    return first != 1 || length <= 1 ? first : is_warm(fd, offset + length - 1);
}
