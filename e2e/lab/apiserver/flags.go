package apiserver

import (
	"fmt"
	"net/netip"
	"path/filepath"

	"github.com/kubeveil/kubeveil/e2e/lab/addressplan"
)

// Port is the port of the API servers.
const Port = 6443

// Config describes one kube-apiserver.
type Config struct {
	// Etcd is the URL of etcd.
	Etcd string
	// Addr is the address in the endpoints of the service kubernetes.
	Addr   netip.Addr
	Family addressplan.Family
	// PKI is the folder with the certificates and keys, as package authority names them.
	PKI string
}

// Flags returns the flags of the program.
func (c Config) Flags() []string {
	bind := "0.0.0.0"
	if c.Family.V6() {
		bind = "::"
	}
	pki := func(name string) string { return filepath.Join(c.PKI, name) }
	return []string{"--etcd-servers=" + c.Etcd,
		"--bind-address=" + bind, fmt.Sprintf("--secure-port=%d", Port),
		"--advertise-address=" + c.Addr.String(),
		"--service-cluster-ip-range=" + addressplan.Joined(c.Family.ServiceRanges()),
		"--tls-cert-file=" + pki("apiserver.crt"),
		"--tls-private-key-file=" + pki("apiserver.key"),
		"--client-ca-file=" + pki("ca.crt"),
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + pki("sa.key"),
		"--service-account-signing-key-file=" + pki("sa.key"),
		"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction",
		"--anonymous-auth=false", "--profiling=false", "--v=1",
		// kubeadm also sets this flag, because CSI drivers are privileged.
		"--allow-privileged=true"}
}
