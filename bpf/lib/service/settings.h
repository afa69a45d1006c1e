/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Settings of services. Go sets them before it loads a program. */
#pragma once

#include "kernel.h"

/* The UDP port of tunnels. No service gets its packets. 0 means that there is no such port. */
volatile const __u32 tunnel_port;
