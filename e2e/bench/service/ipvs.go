package service

import (
	"fmt"
	"math"
	"os"
	"os/exec"

	"github.com/kubeveil/kubeveil/pkg/bench"
)

// ipvsHere reports whether this kernel has IPVS, built in or as a loaded module, and this machine
// has ipset(8), which kube-proxy needs in that mode.
func ipvsHere() bool {
	_, noProgram := exec.LookPath("ipset")
	_, noKernel := os.Stat("/proc/net/ip_vs")
	return noProgram == nil && noKernel == nil
}

const suffixMissing = "_missing_to_" + sideIPVS

// missingToIPVS adds a case for each quantity of a reach that was also measured with IPVS. Its
// value is the part of the gap between IPVS and the direct way that ours leaves open, in per cent.
func (s *run) missingToIPVS(r reach) {
	for _, q := range quantities {
		group := fmt.Sprintf("%s_%s", r, q.name)
		ours, theirs := s.Result.Find(group+"_to_"+sideDirect, 0),
			s.Result.Find(group+"_"+sideIPVS+"_to_direct", 0)
		if ours == nil || theirs == nil {
			continue
		}
		s.Add(group+suffixMissing,
			q.title+" ("+where(group)+"): open part of the gap between IPVS and direct",
			bench.Percent, missing(ours.Ratio.Median, theirs.Ratio.Median))
	}
}

// missing returns 1 - (ours - theirs) / (direct - theirs) in per cent; ours and theirs are ratios
// to direct. It returns 0 if ours is as good as direct. If theirs is as good as direct, no gain is
// possible, and missing returns the distance of ours from direct.
func missing(ours, theirs float64) float64 {
	const alike = 0.01
	if math.Abs(1-theirs) < alike {
		return 100 * math.Abs(1-ours)
	}
	return max(0, 100*(1-(ours-theirs)/(1-theirs)))
}
