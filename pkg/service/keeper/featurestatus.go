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
	counters, err := f.table.Counters()
	if err != nil {
		problems = append(problems, fmt.Sprintf("the table of services cannot be read: %v", err))
	}
	out.Chosen, out.Refused = outcomes(counters)

	if f.links != nil {
		used, err := f.table.Remembered()
		if err != nil {
			problems = append(problems, fmt.Sprintf("flows of services cannot be counted: %v", err))
		} else {
			out.Tables = append(out.Tables, flowSizes(used, f.table.Memory())...)
		}
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

// Drops returns how often programs refused a packet or a socket, by reason. Without a table it is
// empty.
func (f *Feature) Drops() (map[string]uint64, error) {
	if f.keeper == nil {
		return nil, nil
	}
	return f.table.Drops()
}

// tableSizes returns how full the maps of the table are; flowSizes, how full the flow tables are.
// services.limits has a field for each.
func tableSizes(used, room service.Limits) []telemetry.ServiceTable {
	return []telemetry.ServiceTable{
		{Limit: telemetry.LimitFrontends, Used: used.Frontends, Size: room.Frontends},
		{Limit: telemetry.LimitBackendSlots, Used: used.BackendSlots, Size: room.BackendSlots},
		{Limit: telemetry.LimitMembers, Used: used.Members, Size: room.Members},
		{Limit: telemetry.LimitSourceRanges, Used: used.SourceRanges, Size: room.SourceRanges},
	}
}

func flowSizes(used, room bpfmaps.Memory) []telemetry.ServiceTable {
	return []telemetry.ServiceTable{
		{Limit: telemetry.LimitTCPFlows, Used: used.TCP, Size: room.TCP},
		{Limit: telemetry.LimitOpeningFlows, Used: used.Opening, Size: room.Opening},
		{Limit: telemetry.LimitUDPFlows, Used: used.UDP, Size: room.UDP},
		{Limit: telemetry.LimitFlowQuotas, Used: used.Quotas, Size: room.Quotas},
	}
}

// outcomes returns how often the programs chose a backend, and how often they refused.
func outcomes(counters []bpfmaps.Counter) (chosen, refused []telemetry.ServiceCount) {
	for _, c := range counters {
		count := telemetry.ServiceCount{Where: c.Where, What: c.Name, Count: c.Count}
		switch {
		case c.Sentence != "":
			refused = append(refused, count)
		case c.Name != "":
			chosen = append(chosen, count)
		}
	}
	return chosen, refused
}
