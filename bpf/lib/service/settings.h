/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Settings of services. Go sets them before it loads a program. */
#pragma once

#include "kernel.h"

/* The UDP port of tunnels. No service gets its packets. 0 means that there is no such port. */
volatile const __u32 tunnel_port;
/* The end of the ports for SNAT of the node's address; from there on its sockets get theirs. */
volatile const __u32 node_ports_end = 32768;
/* The routing table of packets that have pod_mark. */
volatile const __u32 pod_table;
