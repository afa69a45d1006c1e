package service

import (
	"fmt"
	"math"
	"os"
	"os/exec"

	"github.com/kubeveil/kubeveil/pkg/bench"
)

// ipvsHere reports whether this kernel has IPVS, as a module that is loaded or built in, and the
// machine the program by which kube-proxy writes its sets.
func ipvsHere() bool {
	_, program := exec.LookPath("ipset")
	_, kernel := os.Stat("/proc/net/ip_vs")
	return program == nil && kernel == nil
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
