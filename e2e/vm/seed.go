package vm

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/vm/image"
)

// makeKeys makes the ssh keys, which only this cluster uses.
func (c *Cluster) makeKeys(ctx context.Context) error {
	for _, name := range []string{"ssh", "host"} {
		out, err := exec.CommandContext(ctx, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C",
			"lab", "-f", c.file(name)).CombinedOutput()
		if err != nil {
			return fmt.Errorf("make ssh key: %w: %s", err, out)
		}
	}
	public, err := os.ReadFile(c.file("host.pub"))
	if err != nil {
		return err
	}
	return os.WriteFile(c.file("known_hosts"), []byte("node "+string(public)), 0o644)
}

// seed returns the files that are specific to machine m.
func (c *Cluster) seed(m *Machine) image.Seed {
	var network strings.Builder
	network.WriteString(
		"[Match]\nName=eth0\n\n[Network]\nDHCP=no\nIPv6AcceptRA=no\nLinkLocalAddressing=ipv6\n")
	for _, p := range c.Lab.Family().Underlay(lab.NodeByte(m.Number)) {
		fmt.Fprintf(&network, "Address=%s\n", p)
	}

	// Every real node has a default route, and kubelets require it. This route only reaches the
	// outside host.
	for _, a := range c.Lab.OutsideAddrs() {
		fmt.Fprintf(&network, "Gateway=%s\n", a)
	}

	s := image.Seed{
		"/etc/systemd/network/10-eth0.network": {Content: network.String()},
		"/etc/hosts": {Content: "127.0.0.1 localhost\n::1 localhost\n" +
			m.Addrs[0].String() + " " + m.Name + "\n"},
		"/root/.ssh/authorized_keys": {From: c.file("ssh.pub"), Mode: 0o600},
		"/etc/ssh/lab_host_ed25519":  {From: c.file("host"), Mode: 0o600},
	}

	// The name server does not answer, as in a cluster without a connection to the internet.
	s["/etc/resolv.conf"] = image.File{Content: "nameserver " + c.Lab.OutsideAddrs()[0].String() +
		"\n"}
	if slices.Contains(c.opts.Userspace, m.Number) {
		s["/etc/modprobe.d/no-wireguard.conf"] = image.File{
			Content: "install wireguard /bin/false\n"}
	}

	if !c.opts.Bare {
		if m.hasContainerd2() {
			maps.Copy(s, image.Containerd2())
		}
		s["/etc/systemd/system/containerd.service.d/lab.conf"] = image.File{Content: image.StoreUnit}
		for _, name := range []string{"kubelet", "kubeadm"} {
			s["/usr/bin/"+name] = image.File{Link: image.SharedDir + name}
		}
	}

	return s
}
