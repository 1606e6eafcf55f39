/* stream.c: the UTF-8 half of vocab.h: whatever bytes tokens bring, what goes out is valid and never taken back. */
#include <string.h>

#include "engine/vocab.h"

static const char replacement[] = "\xEF\xBF\xBD";   /* U+FFFD */
enum { REPLACEMENT_BYTES = 3 };

/* Bytes of the character that a first byte opens; 0 for one that opens none. */
static uint32_t length_of(unsigned char first)
{
    return first < 0x80 ? 1 : first < 0xC2 ? 0 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : first < 0xF5 ? 4 : 0;
}

/* May `next` follow the n >= 1 bytes held? The second byte carries the limits: no overlong forms, no surrogates, nothing above U+10FFFF. */
static bool follows(const unsigned char *held, uint32_t n, unsigned char next)
{
    if ((next & 0xC0) != 0x80) {
        return false;
    }
    if (n > 1) {
        return true;
    }
    switch (held[0]) {
    case 0xE0:
        return next >= 0xA0;
    case 0xED:
        return next < 0xA0;
    case 0xF0:
        return next >= 0x90;
    case 0xF4:
        return next < 0x90;
    default:
        return true;
    }
}

static size_t replace(octe_stream *stream, char *out)
{
    memcpy(out, replacement, REPLACEMENT_BYTES);
    stream->n_held = 0;
    return REPLACEMENT_BYTES;
}

size_t octe_stream_bytes(octe_stream *stream, const char *bytes, size_t n, char *out)
{
    size_t length = 0;
    for (size_t i = 0; i < n; i++) {
        const unsigned char byte = (unsigned char)bytes[i];
        if (stream->n_held > 0 && !follows(stream->held, stream->n_held, byte)) {
            length += replace(stream, out + length);
        }
        if (stream->n_held == 0 && length_of(byte) == 0) {
            length += replace(stream, out + length);
            continue;
        }
        stream->held[stream->n_held++] = byte;
        if (stream->n_held == length_of(stream->held[0])) {
            memcpy(out + length, stream->held, stream->n_held);
            length += stream->n_held;
            stream->n_held = 0;
        }
    }
    return length;
}

void octe_stream_finish(octe_stream *stream, char text[4])
{
    const size_t n = stream->n_held > 0 ? replace(stream, text) : 0;
    text[n] = '\0';
}
