/* A hash of the bytes of several tensors: tensors up to WHOLE bytes are read completely, larger
 * ones at PLACES evenly spread places, RUN words at each: a place costs a cache miss, its
 * neighbours nothing. Not cryptographic; see codegen/folded.py. */
#include <stdint.h>
#include <string.h>

enum { WHOLE = 8192, PLACES = 16, RUN = 4 };

static uint64_t mix(uint64_t hash, uint64_t word) {
    hash ^= word + 0x9e3779b97f4a7c15u + (hash << 6) + (hash >> 2);
    return hash * 0xff51afd7ed558ccdu;
}

static uint64_t tail(uint64_t hash, const unsigned char *bytes, int64_t count) {
    uint64_t word = 0;
    memcpy(&word, bytes, (size_t)count);
    return mix(hash, word);
}

/* Four chains side by side: one alone would wait for its multiplications. */
static uint64_t runs(uint64_t hash, const unsigned char *bytes, int64_t words, int64_t step) {
    uint64_t chains[RUN] = {hash, 1, 2, 3};
    int64_t at = 0;
    for (; at + RUN <= words; at += step) {
        uint64_t word[RUN];
        memcpy(word, bytes + 8 * at, sizeof word);
        for (int i = 0; i < RUN; i++) chains[i] = mix(chains[i], word[i]);
    }
    for (; at < words; at++) chains[0] = tail(chains[0], bytes + 8 * at, 8);
    for (int i = 1; i < RUN; i++) chains[0] = mix(chains[0], chains[i]);
    return chains[0];
}

uint64_t eqsat_fingerprint(void **pointers, int64_t *sizes, int64_t count) {
    uint64_t hash = 0;
    for (int64_t i = 0; i < count; i++) {
        const unsigned char *bytes = (const unsigned char *)pointers[i];
        int64_t size = sizes[i], words = size / 8;
        hash = runs(hash, bytes, words, size <= WHOLE ? RUN : words / PLACES);
        if (size % 8) hash = tail(hash, bytes + 8 * words, size % 8);
        hash = mix(hash, (uint64_t)size);
    }
    return hash;
}
