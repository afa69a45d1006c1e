/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* What Go sets before a program is loaded; pkg/abi/number.go has the values. */
#pragma once

#include "kernel.h"

/* The bit of skb->mark on every packet that entered the node from a pod's veth. */
volatile const __u32 pod_mark;
/* The UDP port of the path MTU probe, which is spoken between nodes inside tunnels only. */
volatile const __u32 probe_port;
/* The bit of skb->mark on outer packets. */
volatile const __u32 tunnel_mark;
/* The UDP port of tunnels, to which no packet is a service's; 0 is none. */
volatile const __u32 tunnel_port;
/* Whether packets are sent from link to link where that can be; see route.h. */
volatile const __u32 host_routing;
/* The bit of skb->mark on packets of a flow to a service, both ways. */
volatile const __u32 service_mark;
