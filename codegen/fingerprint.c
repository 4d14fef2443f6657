/* A hash of the bytes of several tensors: tensors up to WHOLE bytes are read completely,
 * larger ones at SAMPLES evenly spread places. Not cryptographic; see codegen/folded.py. */
#include <stdint.h>
#include <string.h>

enum { WHOLE = 8192, SAMPLES = 64 };

static uint64_t mix(uint64_t hash, uint64_t word) {
    hash ^= word + 0x9e3779b97f4a7c15u + (hash << 6) + (hash >> 2);
    return hash * 0xff51afd7ed558ccdu;
}

static uint64_t tail(uint64_t hash, const unsigned char *bytes, int64_t count) {
    uint64_t word = 0;
    memcpy(&word, bytes, (size_t)count);
    return mix(hash, word);
}

uint64_t eqsat_fingerprint(void **pointers, int64_t *sizes, int64_t count) {
    uint64_t hash = 0;
    for (int64_t i = 0; i < count; i++) {
        const unsigned char *bytes = (const unsigned char *)pointers[i];
        int64_t size = sizes[i], words = size / 8;
        int64_t step = size <= WHOLE ? 1 : words / SAMPLES;
        for (int64_t at = 0; at < words; at += step) {
            uint64_t word;
            memcpy(&word, bytes + 8 * at, 8);
            hash = mix(hash, word);
        }
        if (size % 8) hash = tail(hash, bytes + 8 * words, size % 8);
        hash = mix(hash, (uint64_t)size);
    }
    return hash;
}
