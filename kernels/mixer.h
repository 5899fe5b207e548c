/* C ABI of the token-mixing and inference ops; conventions of cpu.h. */
#ifndef HS_MIXER_H
#define HS_MIXER_H

#include "cpu.h"

#endif
