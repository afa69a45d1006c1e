package keeper

import (
	"fmt"
	"slices"

	"github.com/kubeveil/kubeveil/pkg/service"
	"github.com/kubeveil/kubeveil/pkg/service/bpfmaps"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
)

// Status adds the status of the table of services and its problems.
func (f *Feature) Status(s *telemetry.Status) {
	if f.keeper == nil {
		if f.noAPIPath != "" {
			s.Problems = append(s.Problems, f.noAPIPath)
		}
		return
	}

	known := f.keeper.Status()
	out := &telemetry.Services{
		Listed: known.Listed, HostRouting: f.o.Config.Services.HostRouting, Known: known.Services,
		Failures: known.Failures, Problems: len(known.Problems), APIOnly: f.links == nil,
		Tables:    tableSizes(known.Used, known.Limits),
		APIClosed: telemetry.APIClosed{Waiting: known.API.Closed.Stuck, Rest: known.API.Closed.Rest},
	}

	for _, l := range f.o.Source.LeftOut() {
		out.LeftOut = append(out.LeftOut, telemetry.LeftOut(l))
	}
	for _, api := range known.API.Servers {
		out.APIServers = append(out.APIServers, telemetry.APIServer(api))
	}
	for _, h := range known.API.Frontends {
		out.APIFrontends = append(out.APIFrontends, telemetry.APIFrontend(h))
	}

	problems := slices.Concat(known.Problems, known.API.Problems)
	if known.Failed != "" {
		problems = append(problems, "the table of services cannot be written and stays as it is: "+
			known.Failed)
	}
	c, err := f.table.Counters()
	if err != nil {
		problems = append(problems, fmt.Sprintf("the table of services cannot be read: %v", err))
	}
	out.Chosen, out.Refused = chosen(c), refused(c)

	if f.links != nil {
		clients, room, err := f.links.PodClients()
		if err != nil {
			problems = append(problems, fmt.Sprintf("pod clients of services cannot be counted: %v",
				err))
		} else {
			out.Tables = append(out.Tables, telemetry.ServiceTable{
				Limit: telemetry.LimitPodClients, Used: clients, Size: room})
		}
	}

	s.Services, s.Problems = out, append(s.Problems, problems...)
}

// tableSizes returns how full the maps are that services.limits has a field for.
func tableSizes(used, room service.Limits) []telemetry.ServiceTable {
	return []telemetry.ServiceTable{
		{Limit: telemetry.LimitFrontends, Used: used.Frontends, Size: room.Frontends},
		{Limit: telemetry.LimitBackendSlots, Used: used.BackendSlots, Size: room.BackendSlots},
		{Limit: telemetry.LimitMembers, Used: used.Members, Size: room.Members},
		{Limit: telemetry.LimitSourceRanges, Used: used.SourceRanges, Size: room.SourceRanges},
	}
}

// Where the programs choose a backend or refuse.
const socket, packet = "socket", "packet"

func chosen(c bpfmaps.Counters) []telemetry.ServiceCount {
	return []telemetry.ServiceCount{
		{Where: socket, What: "tcp", Count: c.Sockets.TCP},
		{Where: socket, What: "udp", Count: c.Sockets.UDP},
		{Where: packet, What: "tcp", Count: c.Packets.TCP},
		{Where: packet, What: "udp", Count: c.Packets.UDP},
	}
}

func refused(c bpfmaps.Counters) []telemetry.ServiceCount {
	return []telemetry.ServiceCount{
		{Where: socket, What: "no_backend", Count: c.Sockets.Refused},
		{Where: socket, What: "unsteady", Count: c.Sockets.Unsteady},
		{Where: packet, What: "no_backend", Count: c.Packets.Refused},
		{Where: packet, What: "unsteady", Count: c.Packets.Unsteady},
		{Where: packet, What: "not_here", Count: c.NotHere},
		{Where: packet, What: "source", Count: c.SourceRefused},
		{Where: packet, What: "no_address", Count: c.NoAddress},
		{Where: packet, What: "no_port", Count: c.NoPort},
	}
}
