package service

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"os"
	"os/exec"

	"github.com/kubeveil/kubeveil/e2e/bench/service/rules"
	"github.com/kubeveil/kubeveil/pkg/bench"
	"github.com/kubeveil/kubeveil/pkg/bench/suite"
)

// ipvsHere reports whether this kernel has IPVS, as a module that is loaded or built in, and the
// machine its program.
func ipvsHere() bool {
	_, program := exec.LookPath("ipvsadm")
	_, kernel := os.Stat("/proc/net/ip_vs")
	return program == nil && kernel == nil
}

// ipvs adds the addresses of the services and an IPVS table to a lane's node.
func (l *lane) ipvs(ctx context.Context) error {
	plan := l.size.plan()
	if err := l.node.IP(ctx, rules.IPVSAddrs(plan)...); err != nil {
		return err
	}
	var b bytes.Buffer
	if err := rules.IPVS(&b, rulesNode(l.number), plan); err != nil {
		return err
	}
	cmd := l.node.Command(ctx, nil, "ipvsadm", "-R")
	cmd.Stdin = &b
	_, err := suite.Output(cmd)
	return err
}

const suffixMissing = "_missing_to_" + sideIPVS

// missingToIPVS adds, for each quantity of a reach that was measured beside IPVS, how many per cent
// are missing of what there is to gain over it: the direct way gains all.
func (s *run) missingToIPVS(r reach) {
	for _, q := range quantities {
		group := fmt.Sprintf("%s_%s", r, q.name)
		ours, theirs := s.Result.Find(group+"_to_"+sideDirect, 0),
			s.Result.Find(group+"_"+sideIPVS+"_to_direct", 0)
		if ours == nil || theirs == nil {
			continue
		}
		s.Add(group+suffixMissing,
			q.title+" ("+where(group)+"): missing of what there is to gain over IPVS",
			bench.Percent, missing(ours.Ratio.Median, theirs.Ratio.Median))
	}
}

// missing returns 1 - (ours - theirs) / (direct - theirs), in per cent, of ratios to direct. It is
// 0 when ours is as good as direct. Where theirs is as good as direct, no gain is possible, and
// missing returns the distance of ours from direct.
func missing(ours, theirs float64) float64 {
	const alike = 0.01
	if math.Abs(1-theirs) < alike {
		return 100 * math.Abs(1-ours)
	}
	return max(0, 100*(1-(ours-theirs)/(1-theirs)))
}
