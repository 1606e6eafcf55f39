/* machine.c: see machine.h. The list is machine.def. */
#include "plan/machine.h"

#include <stdio.h>
#include <string.h>

typedef struct recorded {
    const char *name, *cpu, *device_name;
    oct__device device;
    oct__facts facts;
} recorded;

static const recorded machines[] = {
#define FACT_IS(fact, value) [OCT__FACT_##fact] = (value)
#define MACHINE(name_, cpu_, device_, device_name_, ...) { #name_, cpu_, device_name_, OCT__DEVICE_##device_, { { __VA_ARGS__ } } },
#include "plan/machine.def"
#undef MACHINE
#undef FACT_IS
};
enum { N_MACHINES = sizeof(machines) / sizeof(machines[0]) };

const char *oct__machine_recorded_name(uint32_t index)
{
    return index < N_MACHINES ? machines[index].name : NULL;
}

bool oct__machine_recorded(const char *name, oct__machine *machine)
{
    for (uint32_t i = 0; i < N_MACHINES; i++) {
        const recorded *r = &machines[i];
        if (strcmp(name, r->name) == 0) {
            memset(machine, 0, sizeof(*machine));
            machine->facts = r->facts;
            machine->device = r->device;
            machine->is_recorded = true;
            snprintf(machine->cpu, sizeof(machine->cpu), "%s", r->cpu);
            snprintf(machine->device_name, sizeof(machine->device_name), "%s", r->device_name);
            machine->rates = r->device == OCT__DEVICE_CPU ? oct__rates_default(&r->facts) : oct__rates_of_device(&r->facts);
            return true;
        }
    }
    return false;
}

oct__rates oct__rates_of_device(const oct__facts *facts)
{
    /* Speeds against the unit that the rows' costs are for. */
    static const struct { uint64_t kind, arch; double speed; const char *source; } known[] = {
        { OCT__DEVICE_CUDA, 90, 1.0, "Hopper, memory on paper" },
        { OCT__DEVICE_CUDA, 80, 0.8, "Ampere, estimated" },
        { OCT__DEVICE_HIP, 942, 1.0, "CDNA 3, estimated" },
        { OCT__DEVICE_HIP, 950, 1.15, "CDNA 4, estimated" },
    };
    const double units = facts->v[OCT__FACT_DEV_UNITS] > 0 ? (double)facts->v[OCT__FACT_DEV_UNITS] : 1;
    /* A driver that tells no rate: what the slowest of the cards that the kernels are for has. */
    const double read = facts->v[OCT__FACT_DEV_READ_MB_PER_S] > 0 ? (double)facts->v[OCT__FACT_DEV_READ_MB_PER_S] * 1e6 : 300e9;
    /* One unit alone has the caches' paths to itself: some times its share. */
    oct__rates rates = { read / units * 3, read, 0.7, "an unknown GPU, estimated", 1, 1, 1 };
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        if (known[i].kind == facts->v[OCT__FACT_DEV_KIND] && known[i].arch == facts->v[OCT__FACT_DEV_ARCH]) {
            rates.speed = known[i].speed;
            rates.source = known[i].source;
        }
    }
    return rates;
}
