package conformance

import (
	"flag"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kubeconfig "sigs.k8s.io/controller-runtime/pkg/client/config"

	api "sigs.k8s.io/network-policy-api/apis/v1beta1"
	"sigs.k8s.io/network-policy-api/conformance/tests"
	"sigs.k8s.io/network-policy-api/conformance/utils/config"
	"sigs.k8s.io/network-policy-api/conformance/utils/flags"
	"sigs.k8s.io/network-policy-api/conformance/utils/suite"
)

// The upstream sets no maximum for these (conformance/utils/config/timeout.go).
var (
	readyTimeout = flag.Duration("ready-timeout", 5*time.Minute,
		"how `long` the pods of the tests may take to be ready")
	pokeTimeout = flag.Duration("poke-timeout", 10*time.Second,
		"how `long` a connection is tried until it ends as wanted")
	requestTimeout = flag.Duration("request-timeout", 3*time.Second,
		"how `long` one try waits for an answer")
)

// TestConformance runs each of the upstream's tests as a subtest. The upstream's flags choose the
// features, and whether the pods of the tests are removed afterwards.
func TestConformance(t *testing.T) {
	access, err := kubeconfig.GetConfig()
	if err != nil {
		t.Fatal(err)
	}
	c, err := client.New(access, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := api.Install(c.Scheme()); err != nil {
		t.Fatal(err)
	}
	clients, err := kubernetes.NewForConfig(access)
	if err != nil {
		t.Fatal(err)
	}

	s := suite.New(suite.Options{
		Client: c, ClientSet: clients, KubeConfig: *access, Debug: *flags.ShowDebug,
		CleanupBaseResources:       *flags.CleanupBaseResources,
		SupportedFeatures:          suite.ParseSupportedFeatures(*flags.SupportedFeatures),
		ExemptFeatures:             suite.ParseSupportedFeatures(*flags.ExemptFeatures),
		EnableAllSupportedFeatures: *flags.EnableAllSupportedFeatures,
		TimeoutConfig: config.TimeoutConfig{NamespacesMustBeReady: *readyTimeout,
			PokeTimeout: *pokeTimeout, RequestTimeout: *requestTimeout},
	})
	s.Setup(t)
	s.Run(t, tests.ConformanceTests)
}
