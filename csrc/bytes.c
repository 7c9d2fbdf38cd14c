/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The framing of BYTES tensors, read and written by byte: neither the alignment of the data nor the byte order of the
 * machine matters. Nothing here is called by Triton; backend.c and Python call it, without the GIL.
 */

#include <string.h>

#include "tritonffi.h"

enum { HEADER = 4 };

static uint32_t read_header(const unsigned char *at)
{
  return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

static void write_header(unsigned char *at, uint32_t length)
{
  at[0] = (unsigned char)length;
  at[1] = (unsigned char)(length >> 8);
  at[2] = (unsigned char)(length >> 16);
  at[3] = (unsigned char)(length >> 24);
}

uint64_t tffi_bytes_scan(const void *data, size_t size, uint64_t count, size_t *offset, uint32_t *lengths)
{
  const unsigned char *bytes = data;
  size_t at = *offset;
  uint64_t done = 0;
  /* Differences only, because a sum of a length and an offset could wrap where size_t has 32 bits. */
  while (done < count && at <= size && size - at >= HEADER) {
    const uint32_t length = read_header(bytes + at);
    if (length > size - at - HEADER) {
      break;
    }
    at += HEADER + (size_t)length;
    if (lengths != NULL) {
      lengths[done] = length;
    }
    done++;
  }
  *offset = at;
  return done;
}

bool tffi_bytes_skip(const void *data, size_t size, uint64_t count, size_t *offset)
{
  return tffi_bytes_scan(data, size, count, offset, NULL) == count;
}

uint64_t tffi_bytes_pack(const void *payload, size_t payload_size, const int64_t *lengths, uint64_t count,
                         void *framed, size_t framed_size)
{
  const unsigned char *from = payload;
  unsigned char *to = framed;
  for (uint64_t i = 0; i < count; i++) {
    if (lengths[i] < 0 || lengths[i] > (int64_t)UINT32_MAX || (uint64_t)lengths[i] > payload_size ||
        framed_size < HEADER || (uint64_t)lengths[i] > framed_size - HEADER) {
      return i;
    }
    const size_t length = (size_t)lengths[i];
    write_header(to, (uint32_t)length);
    to += HEADER;
    framed_size -= HEADER;
    if (length > 0) {
      memcpy(to, from, length);
      from += length;
      to += length;
      payload_size -= length;
      framed_size -= length;
    }
  }
  return count;
}

bool tffi_bytes_pack_separated(const void *joined, size_t joined_size, char separator, uint64_t count, void *framed,
                               size_t framed_size)
{
  const unsigned char *from = joined;
  unsigned char *to = framed;
  for (uint64_t i = 0; i < count; i++) {
    const unsigned char *end = joined_size > 0 ? memchr(from, (unsigned char)separator, joined_size) : NULL;
    if ((end == NULL) != (i == count - 1)) {
      return false;
    }
    const size_t length = end == NULL ? joined_size : (size_t)(end - from);
    if ((uint64_t)length > UINT32_MAX || framed_size < HEADER || length > framed_size - HEADER) {
      return false;
    }
    write_header(to, (uint32_t)length);
    if (length > 0) {
      memcpy(to + HEADER, from, length);
    }
    to += HEADER + length;
    framed_size -= HEADER + length;
    if (end != NULL) {
      from = end + 1;
      joined_size -= length + 1;
    }
  }
  return count > 0 || joined_size == 0;
}

bool tffi_bytes_spread(const void *data, size_t offset, const uint32_t *lengths, uint64_t count, size_t width,
                       void *rows)
{
  const unsigned char *from = (const unsigned char *)data + offset;
  unsigned char *to = rows;
  for (uint64_t i = 0; i < count; i++) {
    const size_t length = lengths[i];
    from += HEADER;
    if (length > width || (length > 0 && from[length - 1] == 0)) {
      return false;
    }
    memcpy(to, from, length);
    memset(to + length, 0, width - length);
    from += length;
    to += width;
  }
  return true;
}

size_t tffi_bytes_format(const uint32_t *lengths, uint64_t count, char *text)
{
  char *to = text;
  for (uint64_t i = 0; i < count; i++) {
    char digits[10];
    size_t digit_count = 0;
    uint32_t rest = lengths[i];
    do {
      digits[digit_count++] = (char)('0' + rest % 10);
      rest /= 10;
    } while (rest > 0);
    *to++ = '4';
    *to++ = 'x';
    while (digit_count > 0) {
      *to++ = digits[--digit_count];
    }
    *to++ = 's';
  }
  return (size_t)(to - text);
}
