package image

import "strings"

// containerd2 lists the programs of containerd 2.
var containerd2 = []string{"containerd", "ctr", "containerd-shim-runc-v2"}

// Containerd2 returns the files that replace the distribution's containerd by containerd 2.
func Containerd2() Seed {
	s := Seed{"/etc/containerd/config.toml": {Content: strings.ReplaceAll(containerdConfig,
		"PAUSE", Pause)}}
	for _, name := range containerd2 {
		s["/usr/bin/"+name] = File{Link: SharedDir + name}
	}
	return s
}

// containerdConfig is in the format of containerd 2.0 (docs/cri/config.md there). By default
// containerd reads statistics from the shim of each container every second. With 40 containers this
// takes more than half of an emulated processor, and no program of the lab uses the statistics.
const containerdConfig = `version = 3
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "PAUSE"
[plugins."io.containerd.cri.v1.runtime"]
  stats_collect_period = "10m"
[plugins."io.containerd.cri.v1.runtime".cni]
  bin_dirs = ["/opt/cni/bin"]
  conf_dir = "/etc/cni/net.d"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
  SystemdCgroup = true
`
