package kfeature

import (
	"fmt"
	"regexp"
	"slices"

	"golang.org/x/sys/unix"
)

// stableOf61 matches the stable release in uname -v of a distribution's kernel, whose release is
// 6.1.0.
var stableOf61 = regexp.MustCompile(`\b6\.1\.(\d+)\b`)

// FlowTableProblem returns nil if the flow tables of this kernel can be used. Otherwise the error
// is the reason why not.
//
// Linux 5.15 does not check whether the route of a flow in a flow table is still valid, so it would
// forward packets to a removed peer until the flow ends. Before 6.4, 6.3.6 and 6.1.32, a connection
// in a flow table cannot be deleted (ctnetlink_del_conntrack), so a UDP flow cannot be moved away
// from a backend that is gone.
func FlowTableProblem() error {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return fmt.Errorf("read the kernel's release: %w", err)
	}
	return tooOldForFlows(unix.ByteSliceToString(u.Release[:]),
		unix.ByteSliceToString(u.Version[:]))
}

// tooOldForFlows is FlowTableProblem for a kernel with this release and version, as in uname -rv.
func tooOldForFlows(release, version string) error {
	var major, minor, patch int
	if _, err := fmt.Sscanf(release, "%d.%d", &major, &minor); err != nil {
		return fmt.Errorf("the kernel's release %q has no version number: each packet takes the "+
			"slow path", release)
	}
	_, _ = fmt.Sscanf(release, "%d.%d.%d", &major, &minor, &patch) // 6.4-rc1 has no third number.
	if m := stableOf61.FindStringSubmatch(version); patch == 0 && m != nil {
		_, _ = fmt.Sscan(m[1], &patch)
	}
	number := [3]int{major, minor, patch}
	since := func(major, minor, patch int) bool {
		return slices.Compare(number[:], []int{major, minor, patch}) >= 0
	}
	if since(6, 4, 0) || minor == 3 && since(6, 3, 6) || minor == 1 && since(6, 1, 32) {
		return nil
	}
	return fmt.Errorf("Linux %d.%d.%d keeps flows whose route or connection is gone, those since "+
		"6.1.32 do not: each packet takes the slow path", major, minor, patch)
}
