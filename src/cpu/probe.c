/* probe.c: see probe.h. */
#include "cpu/probe.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "host/numa.h"
#include "host/threads.h"
#include "host/tiles.h"

#if defined(__x86_64__) || defined(__i386__)
#include <cpuid.h>

typedef struct registers { uint32_t a, b, c, d; } registers;

static registers cpuid(uint32_t leaf, uint32_t subleaf)
{
    registers r = { 0, 0, 0, 0 };
    /* All zero, which means "nothing", where the leaf is above the last one. */
    __get_cpuid_count(leaf, subleaf, &r.a, &r.b, &r.c, &r.d);
    return r;
}

/* Register state that the system saves and restores: what a kernel may touch. Only when CPUID says OSXSAVE. */
static uint64_t xcr0(void)
{
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}

static bool has(uint32_t reg, unsigned bit)
{
    return (reg >> bit & 1) != 0;
}

/* Whether this process may use AMX's tiles: the system saves both parts of their state, and gives it when asked. */
static bool may_use_tiles(uint64_t state)
{
    const uint64_t tiles = UINT64_C(3) << 17;
    return (state & tiles) == tiles && oct__tiles_request();
}

/* Intel: leaf 4; AMD and Hygon: leaf 0x8000001D. Same layout. */
static void probe_caches(oct__facts *facts, uint32_t leaf)
{
    for (uint32_t i = 0; i < 16; i++) {
        const registers r = cpuid(leaf, i);
        const uint32_t type = r.a & 0x1f, level = r.a >> 5 & 7;
        if (type == 0) {
            break;
        }
        const uint64_t bytes = ((uint64_t)(r.b >> 22) + 1) * ((r.b >> 12 & 0x3ff) + 1) * ((r.b & 0xfff) + 1) * ((uint64_t)r.c + 1);
        if (type != 2 && level == 2) {   /* 2: instructions only */
            facts->v[OCT__FACT_CPU_L2_BYTES] = bytes;
        } else if (type != 2 && level == 3) {
            facts->v[OCT__FACT_CPU_L3_BYTES] = bytes;
        }
    }
}

static void probe_features(oct__facts *facts)
{
    const registers one = cpuid(1, 0), seven = cpuid(7, 0), seven_one = cpuid(7, 1);
    const uint64_t state = has(one.c, 27) ? xcr0() : 0;
    facts->v[OCT__FACT_OS_YMM] = (state & 0x06) == 0x06;   /* XMM, YMM */
    facts->v[OCT__FACT_OS_ZMM] = (state & 0xe6) == 0xe6;   /* and opmask, low and high ZMM */
    facts->v[OCT__FACT_OS_TILES] = has(seven.d, 24) && may_use_tiles(state);
    facts->v[OCT__FACT_CPU_FMA] = has(one.c, 12);
    facts->v[OCT__FACT_CPU_F16C] = has(one.c, 29);
    facts->v[OCT__FACT_CPU_AVX2] = has(seven.b, 5);
    facts->v[OCT__FACT_CPU_AVX512F] = has(seven.b, 16);
    facts->v[OCT__FACT_CPU_AVX512BW] = has(seven.b, 30);
    facts->v[OCT__FACT_CPU_AVX512VL] = has(seven.b, 31);
    facts->v[OCT__FACT_CPU_AVX512VBMI] = has(seven.c, 1);
    facts->v[OCT__FACT_CPU_AVX512VNNI] = has(seven.c, 11);
    facts->v[OCT__FACT_CPU_AVX512BF16] = has(seven_one.a, 5);
    facts->v[OCT__FACT_CPU_AMX_BF16] = has(seven.d, 22) && has(seven.d, 24);
    facts->v[OCT__FACT_CPU_AMX_INT8] = has(seven.d, 25) && has(seven.d, 24);
}

static void probe_model(oct__facts *facts)
{
    const registers zero = cpuid(0, 0), one = cpuid(1, 0);
    char vendor[13] = "";
    memcpy(vendor, &zero.b, 4);
    memcpy(vendor + 4, &zero.d, 4);
    memcpy(vendor + 8, &zero.c, 4);
    const uint32_t base = one.a >> 8 & 0xf;
    facts->v[OCT__FACT_CPU_FAMILY] = base == 0xf ? base + (one.a >> 20 & 0xff) : base;
    facts->v[OCT__FACT_CPU_MODEL] = (one.a >> 4 & 0xf) | (base == 0xf || base == 6 ? (one.a >> 16 & 0xf) << 4 : 0);
    facts->v[OCT__FACT_CPU_VENDOR] = strcmp(vendor, "GenuineIntel") == 0 ? OCT__VENDOR_INTEL : strcmp(vendor, "AuthenticAMD") == 0 ? OCT__VENDOR_AMD : OCT__VENDOR_OTHER;
    facts->v[OCT__FACT_CPU_STEPPING] = one.a & 0xf;
    probe_caches(facts, facts->v[OCT__FACT_CPU_VENDOR] == OCT__VENDOR_INTEL ? 4 : 0x8000001d);
}

static void probe_brand(char brand[49])
{
    memset(brand, 0, 49);
    if ((uint32_t)__get_cpuid_max(0x80000000, NULL) < 0x80000004) {
        return;
    }
    for (uint32_t i = 0; i < 3; i++) {
        const registers r = cpuid(0x80000002 + i, 0);
        memcpy(brand + i * 16, &r, sizeof(r));
    }
}

#else

static void probe_features(oct__facts *facts) { (void)facts; }
static void probe_model(oct__facts *facts) { (void)facts; }
static void probe_brand(char brand[49]) { memset(brand, 0, 49); }

#endif

/* Bit n of the last word of a name. Kept rates are compared by it, so a feature stays in its place and new ones go to the end. */
static const struct { oct__fact has, state; } named_features[] = {
    { OCT__FACT_CPU_FMA, OCT__FACT_OS_YMM },          { OCT__FACT_CPU_F16C, OCT__FACT_OS_YMM },        { OCT__FACT_CPU_AVX2, OCT__FACT_OS_YMM },
    { OCT__FACT_CPU_AVX512F, OCT__FACT_OS_ZMM },      { OCT__FACT_CPU_AVX512BW, OCT__FACT_OS_ZMM },    { OCT__FACT_CPU_AVX512VL, OCT__FACT_OS_ZMM },
    { OCT__FACT_CPU_AVX512VBMI, OCT__FACT_OS_ZMM },   { OCT__FACT_CPU_AVX512VNNI, OCT__FACT_OS_ZMM },  { OCT__FACT_CPU_AVX512BF16, OCT__FACT_OS_ZMM },
    { OCT__FACT_CPU_AMX_BF16, OCT__FACT_OS_TILES },   { OCT__FACT_CPU_AMX_INT8, OCT__FACT_OS_TILES },
};

void oct__cpu_name(const oct__facts *facts, const char *brand, char *name, size_t size)
{
    char tidy[64], rest[32];
    size_t n = 0;
    for (const char *c = brand; *c != '\0' && n + 1 < sizeof(tidy); c++) {
        if (*c != ' ' || (n > 0 && tidy[n - 1] != ' ')) {
            tidy[n++] = *c;
        }
    }
    while (n > 0 && tidy[n - 1] == ' ') {
        n--;
    }
    tidy[n] = '\0';
    unsigned features = 0;
    for (size_t i = 0; i < sizeof(named_features) / sizeof(named_features[0]); i++) {
        features |= (unsigned)(facts->v[named_features[i].has] != 0 && facts->v[named_features[i].state] != 0) << i;
    }
    const int n_rest = snprintf(rest, sizeof(rest), " [%u/%u/%u %x]", (unsigned)facts->v[OCT__FACT_CPU_FAMILY], (unsigned)facts->v[OCT__FACT_CPU_MODEL],
                                (unsigned)facts->v[OCT__FACT_CPU_STEPPING], features);
    const size_t room = size > (size_t)n_rest + 1 ? size - (size_t)n_rest - 1 : 0;
    snprintf(name, size, "%.*s%s", (int)room, n > 0 ? tidy : "unknown CPU", rest);
}

void oct__cpu_probe(oct__facts *facts, char *name, size_t size)
{
    char brand[49];
    oct__numa numa;
    oct__numa_read(&numa, NULL, NULL);
    facts->v[OCT__FACT_OS_NODES] = oct__numa_n_memory_nodes(&numa);
    facts->v[OCT__FACT_CPU_CORES] = oct__threads_usable_cpus();
    probe_features(facts);
    probe_model(facts);
    probe_brand(brand);
    oct__cpu_name(facts, brand, name, size);
}
