package main

import (
	"fmt"
	"strings"
)

const (
	module   = "github.com/kubeveil/kubeveil/"
	plugins  = "github.com/containernetworking/plugins/plugins/"
	sidecars = "github.com/kubernetes-csi/"
)

// recipe describes the content of an image.
type recipe struct {
	name string
	// comment is the comment in the history of the image.
	comment string
	// entry is the entry point of the image. path is its environment variable PATH.
	entry, path string
	// programs are main packages, by the folder in the image for which they are built.
	programs map[string][]string
	// released are programs of other projects.
	released []released
	// tools are Debian's programs that are copied with their libraries and loader. toolFiles are
	// other files that these programs need.
	tools, toolFiles []string
	// debian are the Debian packages of these files, whose licences are copied too. debian.lock has
	// their versions. licenses is the value of the licenses label. "" means Apache-2.0.
	debian   []string
	licenses string
}

// released are programs of other projects. The field in is the folder of the module in which they
// are built; its go.mod selects their version. dir is the folder of the image that gets them.
type released struct {
	in, dir  string
	packages []string
}

// recipes are the recipes of all images. kubeveil-tools is for pods that suites and veilctl create.
var recipes = []recipe{{
	name: "kubeveil", comment: "programs and reference CNI plugins",
	entry: "/usr/local/bin/veild", path: "/usr/local/bin:/opt/cni/bin",
	programs: map[string][]string{
		"usr/local/bin": {module + "cmd/veild", module + "cmd/veil-wg", module + "cmd/veilctl",
			module + "cmd/veil-site"},
		"opt/cni/bin": {
			module + "plugins/veil",
			plugins + "ipam/host-local", plugins + "main/loopback", plugins + "meta/bandwidth",
			plugins + "meta/portmap",
		},
	},
}, {
	name: "kubeveil-tools", comment: "echo server, clients and a watcher with canaries; iperf3",
	entry: "/usr/local/bin/veil-tools", path: "/usr/local/bin:/usr/bin",
	programs: map[string][]string{"usr/local/bin": {module + "cmd/veil-tools"}},
	tools:    []string{"iperf3"},
	debian:   []string{"iperf3", "libiperf0", "libsctp1", "libssl3", "libc6"},
	licenses: "Apache-2.0 AND BSD-3-Clause AND LGPL-2.1-or-later",
}, {
	name: "kubeveil-csi", comment: "CSI driver, its side-cars, and the tools of ext4 and xfs",
	entry: "/usr/local/bin/veil-csi", path: "/usr/local/bin:/usr/bin",
	programs: map[string][]string{"usr/local/bin": {module + "cmd/veil-csi"}},
	released: []released{
		{"hack/tools/csi-provisioner", "usr/local/bin",
			[]string{sidecars + "external-provisioner/v6/cmd/csi-provisioner"}},
		{"hack/tools/csi", "usr/local/bin", []string{
			sidecars + "external-resizer/v2/cmd/csi-resizer",
			sidecars + "external-snapshotter/v8/cmd/csi-snapshotter",
			sidecars + "external-snapshotter/v8/cmd/snapshot-controller",
		}},
	},
	tools:     []string{"mkfs.ext4", "e2fsck", "resize2fs", "mkfs.xfs", "xfs_growfs", "xfs_repair"},
	toolFiles: []string{"etc/mke2fs.conf"},
	debian: []string{"e2fsprogs", "libext2fs2", "libcom-err2", "libblkid1", "libuuid1",
		"xfsprogs", "libinih1", "liburcu8", "libc6"},
	licenses: "Apache-2.0 AND GPL-2.0-only AND LGPL-2.1-or-later",
}}

// named returns the recipe of an image.
func named(name string) (recipe, error) {
	var names []string
	for _, r := range recipes {
		if r.name == name {
			return r, nil
		}
		names = append(names, r.name)
	}
	return recipe{}, fmt.Errorf("--image %s: write one of %s", name, strings.Join(names, ", "))
}
