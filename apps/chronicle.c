/* chronicle.c: see chronicle.h. */
#include "apps/chronicle.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

enum { N_PLACES = 7, N_GOODS = 8, N_PEOPLE = 9, NAME_SIZE = 24 };
#define COUNT(list) (sizeof(list) / sizeof((list)[0]))

typedef struct good {
    const char *name, *measure;
    uint32_t usual;             /* what one delivery brings, about */
} good;

static const good goods[N_GOODS] = {
    { "barley", "sacks", 60 }, { "rye", "sacks", 45 }, { "salt", "barrels", 18 },      { "wool", "bales", 24 },
    { "tallow", "casks", 9 },  { "slate", "loads", 30 }, { "smoked eel", "crates", 14 }, { "lamp oil", "jars", 75 },
};

/* The state of the valley: what later sentences refer to. */
typedef struct valley {
    uint64_t random;
    char place[N_PLACES][NAME_SIZE];
    char person[N_PEOPLE][NAME_SIZE];
    uint32_t stock[N_PLACES][N_GOODS];
    uint32_t souls[N_PLACES];
    uint32_t days_to[N_PLACES];
    uint32_t debt[N_PLACES];          /* in pence, to the bridge fund */
    uint32_t fund;
    uint32_t year;
} valley;

/* splitmix64: a few lines, the same everywhere. */
static uint32_t below(valley *v, uint32_t n)
{
    uint64_t z = (v->random += UINT64_C(0x9e3779b97f4a7c15));
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return (uint32_t)((z ^ z >> 31) % n);
}

static void make_name(valley *v, char name[NAME_SIZE], bool is_place)
{
    static const char *const first[] = { "bre", "cal", "dor", "es", "fenn", "gar", "hol", "ith", "kel", "lun", "mar", "nor", "ost", "pel", "rav", "sil", "tam", "ul", "ven", "wyl" };
    static const char *const middle[] = { "a", "ba", "de", "e", "gi", "la", "mi", "no", "ri", "so", "ta", "va" };
    static const char *const ends_place[] = { "ck", "dale", "ford", "garth", "mere", "moor", "ness", "stead", "wick" };
    static const char *const ends_person[] = { "d", "la", "n", "nna", "ric", "s", "th", "vin", "x" };
    const char *const end = is_place ? ends_place[below(v, COUNT(ends_place))] : ends_person[below(v, COUNT(ends_person))];
    const char *const start = first[below(v, COUNT(first))];
    const char *const between = middle[below(v, COUNT(middle))];
    (void)snprintf(name, NAME_SIZE, "%s%s%s", start, between, end);
    name[0] = (char)toupper((unsigned char)name[0]);
}

static void found(valley *v, uint64_t seed)
{
    *v = (valley){ .random = seed, .year = 211 };
    for (uint32_t p = 0; p < N_PLACES; p++) {
        make_name(v, v->place[p], true);
        v->souls[p] = 80 + below(v, 900);
        v->days_to[p] = 1 + below(v, 9);
        v->debt[p] = 20 * (1 + below(v, 12));
        for (uint32_t g = 0; g < N_GOODS; g++) {
            v->stock[p][g] = below(v, 4 * goods[g].usual);
        }
    }
    for (uint32_t n = 0; n < N_PEOPLE; n++) {
        make_name(v, v->person[n], false);
    }
    v->fund = 100 + below(v, 400);
}

/* Two different people. Drawn before any call that names them: the order in which arguments are worked out is the compiler's. */
static void draw_people(valley *v, const char *who[2])
{
    const uint32_t a = below(v, N_PEOPLE), b = (a + 1 + below(v, N_PEOPLE - 1)) % N_PEOPLE;
    who[0] = v->person[a];
    who[1] = v->person[b];
}

static void add_delivery(valley *v, app_text *text)
{
    const char *who[2];
    draw_people(v, who);
    const uint32_t p = below(v, N_PLACES), g = below(v, N_GOODS), n = goods[g].usual / 2 + below(v, goods[g].usual) + 1;
    v->stock[p][g] += n;
    app_text_add(text, "%s brought %u %s of %s to %s, and the store there now holds %u. ", who[0], n, goods[g].measure,
                 goods[g].name, v->place[p], v->stock[p][g]);
}

static void add_sale(valley *v, app_text *text)
{
    const uint32_t p = below(v, N_PLACES), g = below(v, N_GOODS), have = v->stock[p][g];
    if (have < 4) {
        app_text_add(text, "A buyer came to %s for %s and left again, since hardly any remained: %u. ", v->place[p], goods[g].name, have);
        return;
    }
    const uint32_t n = 1 + below(v, have / 2), price = 2 + below(v, 9);
    v->stock[p][g] -= n;
    app_text_add(text, "From %s, %u of the %u %s of %s were sold at %u pence each, which made %u pence and left %u. ", v->place[p], n, have,
                 goods[g].measure, goods[g].name, price, n * price, v->stock[p][g]);
}

static void add_fund(valley *v, app_text *text)
{
    const uint32_t p = below(v, N_PLACES), paid = v->debt[p] / 2;
    if (paid == 0) {
        v->debt[p] = 20 * (1 + below(v, 12));
        app_text_add(text, "%s, which owed nothing, promised %u pence to the bridge fund. ", v->place[p], v->debt[p]);
        return;
    }
    v->debt[p] -= paid;
    v->fund += paid;
    app_text_add(text, "%s paid %u pence of its debt to the bridge fund; it still owes %u, and the fund stands at %u. ", v->place[p], paid, v->debt[p], v->fund);
}

static void add_people(valley *v, app_text *text)
{
    static const char *const causes[] = { "a fever", "the floods", "a dispute over grazing", "the long frost", "the closing of the mill" };
    const uint32_t p = below(v, N_PLACES), n = 1 + below(v, v->souls[p] / 12);
    const bool fewer = below(v, 3) == 0;
    v->souls[p] = fewer ? v->souls[p] - n : v->souls[p] + n;
    if (fewer) {
        app_text_add(text, "After %s, %u people left %s, where %u are now counted. ", causes[below(v, COUNT(causes))], n, v->place[p], v->souls[p]);
    } else {
        app_text_add(text, "%u newcomers were entered in the roll of %s, so that it has %u souls. ", n, v->place[p], v->souls[p]);
    }
}

static void add_journey(valley *v, app_text *text)
{
    static const char *const errands[] = { "to mend the weir", "with letters for the reeve", "to weigh the wool", "to hear the complaint of the tanners", "for the marking of the boundary stones" };
    const char *who[2];
    draw_people(v, who);
    const uint32_t a = below(v, N_PLACES), b = (a + 1 + below(v, N_PLACES - 1)) % N_PLACES;
    app_text_add(text, "%s rode from %s to %s %s, %u days on the road, and lodged with %s. ", who[0], v->place[a], v->place[b],
                 errands[below(v, COUNT(errands))], v->days_to[a] + v->days_to[b], who[1]);
}

static void add_saying(valley *v, app_text *text)
{
    static const char *const sayings[] = {
        "Whoever counts twice eats in winter", "The ford remembers what the bridge forgets", "No ink is dry while the river speaks",
        "A sack unsewn is a sack half given", "Lend your lamp, but keep the oil",
    };
    const char *who[2];
    draw_people(v, who);
    app_text_add(text, "\"%s,\" wrote %s, and %s copied it into the margin. ", sayings[below(v, COUNT(sayings))], who[0], who[1]);
}

static void add_inventory(valley *v, app_text *text)
{
    const char *who[2];
    draw_people(v, who);
    const uint32_t p = below(v, N_PLACES), n = 4 + below(v, N_GOODS - 3);
    app_text_add(text, "Inventory of %s, taken by %s before %s:", v->place[p], who[0], who[1]);
    for (uint32_t g = 0; g < n; g++) {
        app_text_add(text, " %s, %u %s%s", goods[g].name, v->stock[p][g], goods[g].measure, g + 1 < n ? ";" : ". ");
    }
}

void app_chronicle_add(app_text *text, uint64_t seed, size_t min_bytes)
{
    static void (*const kinds[])(valley *, app_text *) = { add_delivery, add_sale, add_delivery, add_sale, add_fund, add_people, add_journey, add_saying, add_inventory };
    static const char *const seasons[] = { "Spring", "Summer", "Autumn", "Winter" };
    valley v;
    found(&v, seed);
    const size_t before = text->length;
    for (uint32_t season = 0; !text->failed && text->length - before < min_bytes; season++) {
        app_text_add(text, "%s of the year %u. ", seasons[season % 4], v.year + season / 4);
        for (uint32_t n = 5 + below(&v, 5); n > 0; n--) {
            kinds[below(&v, COUNT(kinds))](&v, text);
        }
        /* The blank that each sentence ends with becomes the paragraph's end. */
        if (!text->failed) {
            text->length--;
            app_text_add(text, "\n\n");
        }
    }
}
