package driver

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync/atomic"

	"google.golang.org/grpc"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// apiVersion is the CSI version that the driver reports to the kubelet. It means all versions 1.x.
const apiVersion = "1.0.0"

// Registration registers the driver with the kubelet (plugin registration v1). The kubelet finds
// the socket in its registration folder and calls this service there.
type Registration struct {
	registration.UnimplementedRegistrationServer
	// Endpoint is the path of the driver's socket as the kubelet sees it.
	Endpoint string
	Log      *slog.Logger

	registered atomic.Bool
}

// RegistrationSocket returns the path of the driver's socket in dir, the kubelet's registration
// folder.
func RegistrationSocket(dir string) string { return filepath.Join(dir, Name+"-reg.sock") }

// Serve serves the registration socket in the kubelet's folder dir until ctx ends.
func (r *Registration) Serve(ctx context.Context, dir string) error {
	l, err := Listen(RegistrationSocket(dir))
	if err != nil {
		return err
	}
	s := grpc.NewServer()
	registration.RegisterRegistrationServer(s, r)
	return Serve(ctx, s, l)
}

// Registered reports whether the kubelet has accepted the driver.
func (r *Registration) Registered() bool { return r.registered.Load() }

// GetInfo implements the kubelet's registration service.
func (r *Registration) GetInfo(context.Context,
	*registration.InfoRequest) (*registration.PluginInfo, error) {
	return &registration.PluginInfo{Type: registration.CSIPlugin, Name: Name, Endpoint: r.Endpoint,
		SupportedVersions: []string{apiVersion}}, nil
}

// NotifyRegistrationStatus implements the kubelet's registration service. After a refusal, the
// kubelet tries to register the driver again.
func (r *Registration) NotifyRegistrationStatus(_ context.Context,
	s *registration.RegistrationStatus) (*registration.RegistrationStatusResponse, error) {
	r.registered.Store(s.GetPluginRegistered())
	if s.GetPluginRegistered() {
		r.Log.Info("kubelet has registered the driver", "endpoint", r.Endpoint)
	} else {
		r.Log.Error("kubelet refuses the driver", "endpoint", r.Endpoint,
			"error", fmt.Sprint(s.GetError()))
	}
	return &registration.RegistrationStatusResponse{}, nil
}
