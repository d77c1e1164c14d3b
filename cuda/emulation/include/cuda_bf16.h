// Stands before the toolkit's header where the emulation is built, so that host code keeps its #include.
#pragma once

#include "cuda/emulation/float_types.h"
