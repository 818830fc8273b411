#include "protocol/tunables.h"

void tb_tunables_default(tb_tunables *t) {
#define X(name, def, lo, hi, unit, why) t->name = def;
  TB_TUNABLES(X)
#undef X
#define X(name, def, place, words, unit, why) t->name = place;
  TB_CHOICES(X)
#undef X
}
