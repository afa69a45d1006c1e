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
	_, program := exec.LookPath("ipset")
	_, kernel := os.Stat("/proc/net/ip_vs")
	return program == nil && kernel == nil
}

const suffixMissing = "_missing_to_" + sideIPVS

// missingToIPVS adds a case for each quantity of a reach that was measured with IPVS. Its value is
// the part of the possible gain over IPVS that ours misses, in per cent. The direct way has the
// whole possible gain.
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
