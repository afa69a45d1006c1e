package main

//go:generate ../generate-snapshot-crds.sh

import (
	"fmt"
	"strings"
)

const (
	module  = "github.com/kubeveil/kubeveil/"
	plugins = "github.com/containernetworking/plugins/plugins/"
)

// recipe is what an image holds.
type recipe struct {
	name string
	// comment is for its history.
	comment string
	// entry is the program that it starts, and path where programs are searched.
	entry, path string
	// programs are packages of programs that are built, by the folder in the image.
	programs map[string][]string
	// host are programs of this machine that are copied with their libraries and loader.
	host []string
}

// recipes are the images there are: the product, and what suites and veilctl run in pods of their own.
var recipes = []recipe{{
	name: "kubeveil", comment: "programs and reference CNI plugins",
	entry: "/usr/local/bin/veild", path: "/usr/local/bin:/opt/cni/bin",
	programs: map[string][]string{
		"usr/local/bin": {module + "cmd/veild", module + "cmd/veil-wg", module + "cmd/veilctl"},
		"opt/cni/bin": {
			module + "plugins/veil",
			plugins + "ipam/host-local", plugins + "main/loopback", plugins + "meta/bandwidth", plugins + "meta/portmap",
		},
	},
}, {
	name: "kubeveil-tools", comment: "echo server, clients and a watcher with canaries; iperf3",
	entry: "/usr/local/bin/labtool", path: "/usr/local/bin:/usr/bin",
	programs: map[string][]string{"usr/local/bin": {module + "e2e/lab/cmd/labtool", module + "e2e/bench/cmd/benchtool"}},
	host:     []string{"iperf3"},
}}

// named gives the recipe of an image.
func named(name string) (recipe, error) {
	var names []string
	for _, r := range recipes {
		if r.name == name {
			return r, nil
		}
		names = append(names, r.name)
	}
	return recipe{}, fmt.Errorf("-image %s: write one of %s", name, strings.Join(names, ", "))
}
