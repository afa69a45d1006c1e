package hostnode

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
)

// nodeInfo returns the information that a kubelet on this machine would report. The control plane's
// host shares this machine's kernel. The versions of kubelet and container runtime are empty,
// because neither runs on the host.
func nodeInfo() (corev1.NodeSystemInfo, error) {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return corev1.NodeSystemInfo{}, fmt.Errorf("read the kernel's version: %w", err)
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return corev1.NodeSystemInfo{}, err
	}
	// os-release(5): the file in /usr/lib is for systems that lack the file in /etc.
	release, err := os.ReadFile("/etc/os-release")
	if err != nil {
		if release, err = os.ReadFile("/usr/lib/os-release"); err != nil {
			return corev1.NodeSystemInfo{}, err
		}
	}
	return corev1.NodeSystemInfo{
		KernelVersion: unix.ByteSliceToString(u.Release[:]), OSImage: osImage(string(release)),
		OperatingSystem: runtime.GOOS, Architecture: runtime.GOARCH,
		BootID: strings.TrimSpace(string(boot)),
	}, nil
}

// osImage returns PRETTY_NAME of the text of an os-release(5) file. If it is missing, osImage
// returns "Linux", the default according to os-release(5).
func osImage(release string) string {
	for line := range strings.Lines(release) {
		value, ok := strings.CutPrefix(strings.TrimSpace(line), "PRETTY_NAME=")
		if !ok {
			continue
		}
		if name, err := strconv.Unquote(value); err == nil {
			return name
		}
		return strings.Trim(value, "'")
	}
	return "Linux"
}
