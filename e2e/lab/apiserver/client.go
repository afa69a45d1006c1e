package apiserver

import (
	"context"
	"net"
	"net/netip"
	"path/filepath"

	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// Admin has clients that act as a cluster administrator.
type Admin struct {
	Config  *rest.Config
	Client  kubernetes.Interface
	Dynamic dynamic.Interface
}

// Connect returns clients for the API server at an address. pki is its folder, see Config.
func Connect(addr netip.Addr, pki string,
	dial func(ctx context.Context, network, addr string) (net.Conn, error)) (c Admin, err error) {
	c.Config = &rest.Config{
		Host: "https://" + netip.AddrPortFrom(addr, Port).String(),
		TLSClientConfig: rest.TLSClientConfig{CAFile: filepath.Join(pki, "ca.crt"),
			CertFile: filepath.Join(pki, "admin.crt"), KeyFile: filepath.Join(pki, "admin.key")},
		Dial: dial,
		QPS:  1000, Burst: 1000,
	}
	// Load the files now: with file names, the client keeps goroutines that reload them.
	if err := rest.LoadTLSFiles(c.Config); err != nil {
		return c, err
	}
	c.Config.CAFile, c.Config.CertFile, c.Config.KeyFile = "", "", ""
	if c.Client, err = kubernetes.NewForConfig(c.Config); err != nil {
		return c, err
	}
	c.Dynamic, err = dynamic.NewForConfig(c.Config)
	return c, err
}

// Kubeconfig returns a kubeconfig with one cluster and one user.
func Kubeconfig(c clientcmdapi.Cluster, user clientcmdapi.AuthInfo) ([]byte, error) {
	k := clientcmdapi.NewConfig()
	k.Clusters["lab"], k.AuthInfos["user"] = &c, &user
	k.Contexts["lab"] = &clientcmdapi.Context{Cluster: "lab", AuthInfo: "user"}
	k.CurrentContext = "lab"
	return clientcmd.Write(*k)
}
