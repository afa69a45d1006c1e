package vm

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"text/template"
	"time"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/vm/hostnode"
	"github.com/kubeveil/kubeveil/e2e/vm/image"
	"github.com/kubeveil/kubeveil/e2e/vm/qemu"
)

// pki is the folder of kubeadm's certificates in the /etc of the control plane's host.
const pki = "/etc/kubernetes/pki/"

// superAdmin is the path of the kubeconfig whose user has all permissions before RBAC is
// bootstrapped.
const superAdmin = "/etc/kubernetes/super-admin.conf"

// initConfig is the configuration that a user of kubeadm would write for this cluster.
var initConfig = template.Must(template.New("init").Parse(`apiVersion: kubeadm.k8s.io/v1beta4
kind: InitConfiguration
localAPIEndpoint:
  advertiseAddress: {{.API}}
  bindPort: {{.Port}}
nodeRegistration:
  name: control
bootstrapTokens:
  - token: {{.Token}}
    ttl: 24h0m0s
    usages: [signing, authentication]
    groups: [system:bootstrappers:kubeadm:default-node-token]
---
apiVersion: kubeadm.k8s.io/v1beta4
kind: ClusterConfiguration
kubernetesVersion: {{.Version}}
controlPlaneEndpoint: {{.API}}:{{.Port}}
imageRepository: {{.Registry}}
dns:
  imageTag: {{.DNS}}
networking:
  podSubnet: {{.Pods}}
  serviceSubnet: {{.Services}}
apiServer:
  certSANs: [{{.Names}}]
---
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
cgroupDriver: systemd
authentication:
  x509:
    clientCAFile: /etc/kubernetes/pki/ca.crt
{{- if .Emulated}}
# Measuring the use of disks takes a third of an emulated node's processor time.
localStorageCapacityIsolation: false
evictionHard:
  memory.available: 0%
  nodefs.available: 0%
  nodefs.inodesFree: 0%
  imagefs.available: 0%
  imagefs.inodesFree: 0%
{{- end}}
---
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: {{.ProxyMode}}
`))

// joinConfig is the configuration of kubeadm join on a worker.
var joinConfig = template.Must(template.New("join").Parse(`apiVersion: kubeadm.k8s.io/v1beta4
kind: JoinConfiguration
discovery:
  bootstrapToken:
    token: {{.Token}}
    apiServerEndpoint: {{.API}}:{{.Port}}
    caCertHashes: ["{{.Hash}}"]
nodeRegistration:
  name: {{.Name}}
  kubeletExtraArgs:
    - name: node-ip
      value: {{.NodeIP}}
{{- if .Emulated}}
    - name: housekeeping-interval
      value: 1m
{{- end}}
`))

// makeKubernetes starts the control plane and joins every machine as soon as it answers.
func (c *Cluster) makeKubernetes(ctx context.Context) error {
	if err := c.makeControl(ctx); err != nil {
		return fmt.Errorf("control plane: %w", err)
	}
	if err := c.forwardAPI(ctx); err != nil {
		return err
	}

	c.step("control plane is ready")
	hash, err := c.caHash()
	if err != nil {
		return err
	}
	setup := c.opts.hostSetup()
	setup.Control, setup.Addrs, setup.Outside = c.Control, c.controlAddrs(), c.Lab.OutsideAddrs()
	setup.Program, setup.Kubeconfig, setup.Log = c.hostProgram, c.Kubeconfig(), c.log
	setup.ClusterCIDR = commas(c.podRanges())
	if c.host, err = hostnode.Start(ctx, setup); err != nil {
		return err
	}

	if !c.opts.NoVeil {
		// Kubeveil is installed before the nodes join, so its pods start on each node as it joins.
		if err := c.applyVeil(ctx); err != nil {
			return err
		}
	}

	err = c.each(func(m *Machine) error {
		if err := m.WaitSSH(ctx); err != nil {
			return err
		}
		return c.join(ctx, m, hash)
	})
	if err != nil || c.opts.NoVeil {
		return err
	}

	return c.waitNodes(ctx)
}

// makeControl makes credentials with kubeadm, starts the programs with kubeadm's flags, and uploads
// the objects that joining nodes read.
func (c *Cluster) makeControl(ctx context.Context) error {
	c.token = randomHex(3) + "." + randomHex(8)
	family := c.Lab.Family()
	err := c.render(initConfig, "kubeadm.yaml", map[string]any{
		"API": c.apiAddr(), "Port": lab.APIPort, "Token": c.token, "Version": c.version,
		"Registry": image.Registry, "DNS": c.dnsTag,
		"Pods": commas(c.podRanges()), "Services": commas(family.ServiceRanges()),
		"Names":     c.secondNames(),
		"ProxyMode": c.opts.proxyMode(),
		"Emulated":  c.Accel == qemu.TCG,
	})
	if err != nil {
		return err
	}

	for _, phase := range []string{"certs all", "kubeconfig all"} {
		if err := c.phase(ctx, phase); err != nil {
			return err
		}
	}

	if err := c.startControl(ctx); err != nil {
		return err
	}

	phases := []string{"upload-config all", "bootstrap-token", "addon coredns"}
	if !c.opts.translates() {
		phases = append(phases, "addon kube-proxy")
	}

	for _, phase := range phases {
		// During its first seconds the API server still creates the objects of RBAC and the
		// priority levels.
		err := lab.Until(ctx, time.Minute, func() error {
			return c.phase(ctx, phase, "--kubeconfig="+superAdmin)
		})
		if err != nil {
			return err
		}
	}

	return nil
}

// phase runs one phase of kubeadm init.
func (c *Cluster) phase(ctx context.Context, phase string, args ...string) error {
	args = append(append([]string{"init", "phase"}, strings.Fields(phase)...),
		append(args, "--config="+c.file("kubeadm.yaml"))...)
	if _, err := c.Control.Exec(ctx, c.program("kubeadm"), args...); err != nil {
		return fmt.Errorf("kubeadm init phase %s: %w", phase, err)
	}
	return nil
}

// Kubectl runs kubectl as the cluster's administrator from the control plane's host.
func (c *Cluster) Kubectl(ctx context.Context, args ...string) ([]byte, error) {
	return c.Control.Exec(ctx, c.program("kubectl"),
		append([]string{"--kubeconfig=" + superAdmin}, args...)...)
}

// KubectlCommand returns a kubectl command of the cluster's administrator without arguments. The
// caller adds them, for example those that a user typed.
func (c *Cluster) KubectlCommand(ctx context.Context) *exec.Cmd {
	return c.Control.Command(ctx, c.program("kubectl"), "--kubeconfig="+superAdmin)
}

// Apply applies objects in YAML to the API server.
func (c *Cluster) Apply(ctx context.Context, objects []byte) error {
	path := c.file("apply-" + randomHex(4) + ".yaml")
	if err := os.WriteFile(path, objects, 0o644); err != nil {
		return err
	}
	_, err := c.Kubectl(ctx, "apply", "--server-side", "-f", path)
	return err
}

// startControl starts etcd and the control plane's programs with the flags of kubeadm's static
// pods.
func (c *Cluster) startControl(ctx context.Context) error {
	if err := c.startEtcd(ctx); err != nil {
		return err
	}
	var err error
	c.api, err = c.Control.Start(ctx, c.program("kube-apiserver"),
		c.serverArguments(c.apiAddr(), "--etcd-servers="+etcdLocal)...)
	if err != nil {
		return err
	}

	if err := c.waitAPI(ctx); err != nil {
		return err
	}

	family := c.Lab.Family()
	manager := "--kubeconfig=/etc/kubernetes/controller-manager.conf"
	_, err = c.Control.Start(ctx, c.program("kube-controller-manager"), manager,
		"--authentication-kubeconfig=/etc/kubernetes/controller-manager.conf",
		"--authorization-kubeconfig=/etc/kubernetes/controller-manager.conf",
		"--bind-address=127.0.0.1", "--client-ca-file="+pki+"ca.crt",
		"--root-ca-file="+pki+"ca.crt",
		"--cluster-signing-cert-file="+pki+"ca.crt", "--cluster-signing-key-file="+pki+"ca.key",
		"--service-account-private-key-file="+pki+"sa.key",
		"--use-service-account-credentials=true",
		"--requestheader-client-ca-file="+pki+"front-proxy-ca.crt",
		"--controllers=*,bootstrap-signer-controller,token-cleaner-controller",
		"--allocate-node-cidrs=true", "--cluster-cidr="+commas(c.podRanges()),
		"--service-cluster-ip-range="+commas(family.ServiceRanges()),
		"--leader-elect=false")
	if err != nil {
		return err
	}

	scheduler := "/etc/kubernetes/scheduler.conf"
	_, err = c.Control.Start(ctx, c.program("kube-scheduler"), "--kubeconfig="+scheduler,
		"--authentication-kubeconfig="+scheduler,
		"--authorization-kubeconfig="+scheduler, "--bind-address=127.0.0.1", "--leader-elect=false")
	return err
}

// join joins a machine to the cluster by kubeadm, as an administrator would.
func (c *Cluster) join(ctx context.Context, m *Machine, hash string) error {
	var addrs []string
	for _, a := range m.Addrs {
		addrs = append(addrs, a.String())
	}

	var config bytes.Buffer
	err := joinConfig.Execute(&config, map[string]any{
		"API": c.apiAddr(), "Port": lab.APIPort, "Token": c.token, "Hash": hash, "Name": m.Name,
		"NodeIP":   strings.Join(addrs, ","),
		"Emulated": c.Accel == qemu.TCG,
	})
	if err != nil {
		return err
	}

	if err := m.Put(ctx, "/etc/kubernetes/join.yaml", 0o600, &config); err != nil {
		return err
	}

	// kubeadm waits two seconds for containerd to answer. A containerd that is starting on a busy
	// machine takes longer. kubeadm's checks change nothing, so they can be repeated.
	err = lab.Until(ctx, 3*time.Minute, func() error {
		out, err := m.Exec(ctx, "kubeadm join --config /etc/kubernetes/join.yaml 2>&1")
		if err == nil {
			return nil
		}
		err = fmt.Errorf("%w: %s", err, out)
		if !bytes.Contains(out, []byte("[ERROR CRI]")) {
			return lab.Stop(err)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("join %s: %w", m.Name, err)
	}

	// kubeadm ends when the kubelet is healthy. The kubelet may create its Node later.
	err = lab.Until(ctx, time.Minute, func() error {
		_, err := c.Kubectl(ctx, "get", "node", m.Name)
		return err
	})
	if err != nil {
		return fmt.Errorf("join %s: %w", m.Name, err)
	}

	c.step("machine has joined", "machine", m.Name)
	return nil
}

// caHash returns the hash of the public key of the cluster's certificate authority, in the format
// of kubeadm.
func (c *Cluster) caHash() (string, error) {
	b, err := os.ReadFile(c.Control.Path(pki + "ca.crt"))
	if err != nil {
		return "", err
	}
	block, _ := pem.Decode(b)
	if block == nil {
		return "", errors.New("ca.crt holds no PEM")
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return "", fmt.Errorf("parse ca.crt: %w", err)
	}
	sum := sha256.Sum256(cert.RawSubjectPublicKeyInfo)
	return "sha256:" + hex.EncodeToString(sum[:]), nil
}

// render executes a template and writes the result to a file of the artefacts.
func (c *Cluster) render(t *template.Template, name string, data any) error {
	var b bytes.Buffer
	if err := t.Execute(&b, data); err != nil {
		return err
	}
	return os.WriteFile(c.file(name), b.Bytes(), 0o600)
}

// controlAddrs returns the addresses of the control plane's host on the underlay, IPv4 first.
func (c *Cluster) controlAddrs() []netip.Addr {
	var addrs []netip.Addr
	for _, p := range c.Lab.Family().Underlay(c.place.controlByte()) {
		addrs = append(addrs, p.Addr())
	}
	return addrs
}

func (c *Cluster) apiAddr() netip.Addr { return c.controlAddrs()[0] }

func commas(prefixes []netip.Prefix) string {
	words := make([]string, len(prefixes))
	for i, p := range prefixes {
		words[i] = p.String()
	}
	return strings.Join(words, ",")
}

func randomHex(n int) string {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails (crypto/rand)
	return hex.EncodeToString(b)
}
