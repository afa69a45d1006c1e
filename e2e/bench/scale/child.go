package scale

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/kubeveil/kubeveil/e2e/bench/scale/loop"
	"github.com/kubeveil/kubeveil/e2e/scale/apifeed"
	"github.com/kubeveil/kubeveil/pkg/bench"
	"github.com/kubeveil/kubeveil/pkg/bench/suite"
)

// verbFeed is the verb of the feed's process. The other verbs are the names of sides.
const verbFeed = "feed"

// Child reports whether Run started this process as a child. If so, it runs the verb in the
// arguments and returns the exit status. In other processes it does nothing. A program that calls
// Run must call Child first.
func Child() (status int, is bool) { return suite.Child(Suite, child) }

// child runs a verb. Its other arguments are the kind of the endpoints and their number, the path
// of the kubeconfig, and the path of a profile to write, which may be empty. For sideFollow the last
// is the number of services that the API server has.
func child(ctx context.Context, args []string, out io.Writer) error {
	if len(args) != 5 {
		return fmt.Errorf("%q: want a verb, a kind, a number, a path and another argument", args)
	}
	n, err := strconv.Atoi(args[2])
	if err != nil {
		return err
	}

	var f figures
	shape, config := shapeOf(args[1], n), args[3]
	switch args[0] {
	case verbFeed:
		return serve(ctx, shape, config)
	case sideOurs:
		f, err = ours(ctx, wantOf(shape), config, args[4], &shape)
	case sideLoop:
		f, err = theirs(ctx, n, config)
	case sideServed:
		f, err = ours(ctx, wantOf(shape).beside(), config, args[4], nil)
	case sideDrop:
		f, err = drop(ctx, config)
	case sideFollow:
		services, bad := strconv.Atoi(args[4])
		if bad != nil {
			return bad
		}
		f, err = follow(ctx, services, shape, config, out)
	default:
		err = fmt.Errorf("there is no verb %s", args[0])
	}
	if err != nil {
		return err
	}
	return json.NewEncoder(out).Encode(f)
}

// perService is the number of endpoints of a service.
const perService = 100

func shapeOf(kind string, n int) apifeed.Shape {
	s := apifeed.Shape{Endpoints: n, PerService: perService, IPv6: kind == kindIPv6}
	if kind == kindUDP {
		s.UDP = 2
	}
	if kind == kindWhole {
		s.PerService = n
	}
	return s
}

// serve encodes endpoints for both sides and serves them until ctx ends. The kubeconfig is written
// last.
func serve(ctx context.Context, shape apifeed.Shape, config string) error {
	f := apifeed.New()
	defer f.Close()
	if err := shape.Fill(f); err != nil {
		return err
	}
	f.Serve(loop.Path, loop.Messages(shape.Endpoints))
	f.Handle(changePath, &changer{feed: f, shape: shape})
	s := &storm{feed: f, shape: shape}
	f.Handle(stormPath, s)
	f.Handle(calmPath, s)
	if err := f.WriteConfig(config); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

// theirs measures the loop.
func theirs(ctx context.Context, n int, config string) (f figures, err error) {
	client, url, err := clientOf(config)
	if err != nil {
		return f, err
	}
	wall, cpu, err := loop.Measure(ctx, client, url+loop.Path, n)
	f.Wall, f.Processor = bench.Millis(wall), bench.Millis(cpu)
	return f, err
}

// clientOf returns a client for the server in a kubeconfig, and the server's address.
func clientOf(config string) (*http.Client, string, error) {
	cfg, err := clientcmd.BuildConfigFromFlags("", config)
	if err != nil {
		return nil, "", err
	}
	cfg.DisableCompression = true
	client, err := rest.HTTPClientFor(cfg)
	return client, cfg.Host, err
}
