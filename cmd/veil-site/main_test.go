package main

import (
	"errors"
	"io"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/filetest"
)

const veild = `kubeadmConfig: /etc/kubeveil/kubeadm.yaml
nodeRanges: [192.0.2.0/24]
source: {kind: kubernetes}
sites:
  - name: b
    podRanges: [10.245.0.0/16]
    nodeRanges: [198.51.100.0/24]
    imports: [shop]
`

const kubeadm = `kind: ClusterConfiguration
networking: {podSubnet: 10.244.0.0/16, serviceSubnet: 10.96.0.0/12}
`

// The configuration is the file of veild, with ranges from the file of kubeadm.
func TestReadConfig(t *testing.T) {
	dir := t.TempDir()
	config, cluster := filepath.Join(dir, "veild.yaml"), filepath.Join(dir, "kubeadm.yaml")
	filetest.Write(t, config, []byte(veild), 0o600)
	if _, err := readConfig(config, cluster); err == nil ||
		!strings.Contains(err.Error(), "kubeadm") {
		t.Errorf("without ranges: %v", err)
	}

	filetest.Write(t, cluster, []byte(kubeadm), 0o600)
	c, err := readConfig(config, cluster)
	errtest.Must(t, err)
	if len(c.Sites) != 1 || !c.Sites[0].ImportsInto("shop") || c.Sites[0].ImportsInto("default") ||
		c.ClusterRanges[0].String() != "10.244.0.0/16" {
		t.Errorf("%+v", c)
	}
}

func TestFlags(t *testing.T) {
	o, err := parse([]string{"--cluster-name=a", "--identity=i"}, io.Discard)
	if err != nil || o.clusterName != "a" || o.identity != "i" ||
		o.credentials != "/etc/kubeveil/sites" {
		t.Errorf("%+v: %v", o, err)
	}
	if _, err := parse([]string{"-h"}, io.Discard); !errors.Is(err, pflag.ErrHelp) {
		t.Error(err)
	}
	for _, args := range []string{"extra", "--probe=healthy", "--metrics=nowhere"} {
		if _, err := parse([]string{args}, io.Discard); err == nil {
			t.Errorf("%s is accepted", args)
		}
	}
}
