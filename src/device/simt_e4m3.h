/* simt_e4m3.h: e4m3 to f16 where the chip has no instruction for that flavour: exponent and mantissa are moved into an f16, two at a time, and its
 * exponent corrected by a product that is exact for subnormals too. */
#ifndef OCT_DEVICE_SIMT_E4M3_H
#define OCT_DEVICE_SIMT_E4M3_H

DEV uint32_t oct__e4m3_pair_by_hand(uint32_t two, const int is_fnuz)
{
    /* two: codes in the upper bytes of both halves. 2^8 (e4m3fn) or 2^7 (e4m3fnuz) makes up for the smaller exponents. */
    return oct__mul_f16x2((two >> 1 & 0x3F803F80u) | (two & 0x80008000u), is_fnuz ? 0x58005800u : 0x5C005C00u);
}

DEV void oct__e4m3_to_f16_by_hand(uint32_t word, const int is_fnuz, uint32_t *out)
{
    out[0] = oct__e4m3_pair_by_hand(byte_perm(word, 0, 0x1404), is_fnuz);
    out[1] = oct__e4m3_pair_by_hand(byte_perm(word, 0, 0x3424), is_fnuz);
    /* NaN codes are rare: one look at the word finds whether there is any (0x7F and 0xFF, or 0x80). */
    const uint32_t like = is_fnuz ? word ^ 0x80808080u : (word & 0x7F7F7F7Fu) ^ 0x7F7F7F7Fu;   /* a zero byte is a NaN */
    if (((like - 0x01010101u) & ~like & 0x80808080u) != 0) {
        UNROLL
        for (uint32_t i = 0; i < 4; i++) {
            if ((like >> (8 * i) & 0xFFu) == 0) {
                out[i / 2] = (out[i / 2] & ~(0xFFFFu << (16 * (i % 2)))) | 0x7E00u << (16 * (i % 2));
            }
        }
    }
}

#endif
