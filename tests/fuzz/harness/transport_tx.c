/* The sender: any parts, bytes and file ranges, through a socket that takes little at a time, arrive as one stream. */
#define _GNU_SOURCE
#include "isr_tx.h"
#include "input.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#define FILE_BYTES 40000
#define MOST_PARTS 80
#define ROOM (1 << 20)

static uint8_t content[FILE_BYTES];
static int file = -1, null_device = -1;

static void prepare(void)
{
    if (file >= 0)
        return;
    for (int i = 0; i < FILE_BYTES; i++)
        content[i] = (uint8_t)(i * 31 + (i >> 8));
    file = memfd_create("content", 0);
    CHECK(write(file, content, FILE_BYTES) == FILE_BYTES);
    null_device = open("/proc/self/mem", O_RDONLY);
    signal(SIGPIPE, SIG_DFL);
}

static uint32_t number(const fuzz_input *in, size_t *at, uint32_t below)
{
    uint32_t value = 0;
    for (int i = 0; i < 3 && *at < in->len; i++)
        value = value << 8 | in->bytes[(*at)++];
    return value % below;
}

/* Parts as the input says; what should arrive goes to `expected`, up to the first range beyond the file's end. */
static int lay_out(const fuzz_input *in, isr_tx_part *parts, uint8_t *expected, size_t *total, int *broken)
{
    size_t at = 0;
    int count = 0;
    while (at < in->len && count < MOST_PARTS) {
        uint32_t kind = in->bytes[at++];
        isr_tx_part *part = &parts[count++];
        *part = (isr_tx_part){.fd = -1};
        if (kind & 1) {
            part->fd = kind & 64 ? null_device : file;
            part->offset = number(in, &at, FILE_BYTES + 1);
            part->length = number(in, &at, kind & 2 ? FILE_BYTES - (uint32_t)part->offset + 1 : FILE_BYTES / 8);
            if (part->fd == null_device && part->length > 0)
                *broken = 1;
            int64_t there = FILE_BYTES - part->offset;
            int64_t good = part->length < there ? part->length : there;
            if (!*broken) {
                memcpy(expected + *total, content + part->offset, (size_t)good);
                *total += (size_t)good;
            }
            if (good < part->length)
                *broken = 1;
        } else {
            part->length = number(in, &at, 300);
            if ((size_t)part->length > in->len - at)
                part->length = (int64_t)(in->len - at);
            part->data = in->bytes + at;
            if (!*broken) {
                memcpy(expected + *total, in->bytes + at, (size_t)part->length);
                *total += (size_t)part->length;
            }
            at += (size_t)part->length;
        }
        if (*total > ROOM - FILE_BYTES)
            break;
    }
    return count;
}

static size_t drain(int sock, uint8_t *into, size_t room, size_t step)
{
    ssize_t n = recv(sock, into, step && step < room ? step : room, MSG_DONTWAIT);

    CHECK(n >= 0 || errno == EAGAIN);
    return n > 0 ? (size_t)n : 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static uint8_t expected[ROOM], received[ROOM];
    isr_tx_part parts[MOST_PARTS];
    isr_tx_cursor cursor = {0};
    size_t total = 0, arrived = 0;
    int64_t sent = 0;
    int ends[2], broken = 0, code, small = 4096;
    fuzz_input in;

    if (!take_input(&in, data, size))
        return 0;
    prepare();
    int count = lay_out(&in, parts, expected, &total, &broken);
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) == 0);
    if (in.flags & 4)
        setsockopt(ends[0], SOL_SOCKET, SO_SNDBUF, &small, sizeof small);
    /* A thousand turns at most: each is some system calls, and a busy machine must not look like an endless loop. */
    int64_t quantum = (in.medium ? in.medium : 1) + (int64_t)total / 1024;
    if (in.flags & 8)
        close(ends[1]);
    for (long turn = 0;; turn++) {
        int64_t before = sent;
        code = isr_tx_step(ends[0], parts, count, &cursor, quantum, &sent);
        CHECK(turn < 4 * ROOM);
        CHECK(cursor.part >= 0 && cursor.part <= count && cursor.done >= 0 && sent >= before);
        CHECK(cursor.part == count || cursor.done <= parts[cursor.part].length);
        if (code == ISR_TX_QUANTUM)
            CHECK(sent - before >= quantum);
        if (code != ISR_TX_QUANTUM && code != ISR_TX_BLOCKED)
            break;
        if (!(in.flags & 8))
            arrived += drain(ends[1], received + arrived, ROOM - arrived, 64 * in.small + 64);
    }
    if (in.flags & 8) {
        CHECK(code == -EPIPE || code == -ECONNRESET || code == ISR_TX_DONE || broken);
        CHECK(sent == 0);
    } else {
        for (size_t n; (n = drain(ends[1], received + arrived, ROOM - arrived, 0)) > 0;)
            arrived += n;
        CHECK(broken ? code != ISR_TX_DONE : code == ISR_TX_DONE);
        CHECK(broken || cursor.part == count);
        CHECK(arrived == (size_t)sent && arrived <= total && (broken || arrived == total));
        CHECK(memcmp(received, expected, arrived) == 0);
        CHECK(code != ISR_TX_TRUNCATED || arrived == total);
        close(ends[1]);
    }
    close(ends[0]);
    free_input(&in);
    return 0;
}
