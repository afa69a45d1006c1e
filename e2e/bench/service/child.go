package service

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/kubeveil/kubeveil/e2e/bench/service/openloop"
)

// childEnv says to a program of ours that it is one of those below.
const childEnv = "KUBEVEIL_BENCH_SERVICE_CHILD"

// Ports on which endpoints listen. The services' are the same.
const (
	portHTTP     = 8080
	portEcho     = 9000
	portSockperf = 11111
	portIperf    = 5201
)

// Child does what Run starts its own executable for, and returns its exit status. It says false,
// and has done nothing, when this process was not started by Run. The first thing that a program
// that calls Run must do.
func Child() (status int, is bool) {
	if os.Getenv(childEnv) == "" || len(os.Args) < 3 {
		return 0, false
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := child(ctx, os.Args[1], os.Args[2], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1, true
	}
	return 0, true
}

func child(ctx context.Context, what, arg string, out io.Writer) error {
	switch what {
	case "serve":
		return serve(ctx, arg)
	case "load":
		var l openloop.Load
		if err := json.Unmarshal([]byte(arg), &l); err != nil {
			return err
		}
		r, err := l.Run(ctx)
		if err != nil {
			return err
		}
		return json.NewEncoder(out).Encode(r)
	case "who":
		return who(ctx, arg, out)
	}
	return fmt.Errorf("%s: want serve, load or who", what)
}

// serve is an endpoint: an empty answer to HTTP, its name on /who, an echo.
func serve(ctx context.Context, name string) error {
	web := http.NewServeMux()
	web.HandleFunc("/", func(http.ResponseWriter, *http.Request) {})
	web.HandleFunc("/who", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, name) })
	errs := make(chan error, 2)
	for port, fn := range map[int]func(net.Listener) error{
		portHTTP: func(l net.Listener) error { return (&http.Server{Handler: web}).Serve(l) },
		portEcho: openloop.Echo,
	} {
		l, err := net.Listen("tcp4", fmt.Sprintf(":%d", port))
		if err != nil {
			return err
		}
		go func() { errs <- fn(l) }()
	}
	select {
	case <-ctx.Done():
		return nil
	case err := <-errs:
		return err
	}
}

// asks is how often who asks. One of three endpoints is not met by this many with a probability of
// 10^-10.
const asks = 60

// who asks a server of HTTP who it is, over connections of its own each time, and prints how often
// it was which.
func who(ctx context.Context, addr string, out io.Writer) error {
	to, err := netip.ParseAddrPort(addr)
	if err != nil {
		return err
	}
	client := http.Client{Timeout: 5 * time.Second,
		Transport: &http.Transport{DisableKeepAlives: true}}
	seen := map[string]int{}
	for range asks {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+to.String()+"/who",
			nil)
		if err != nil {
			return err
		}
		resp, err := client.Do(req)
		if err != nil {
			return err
		}
		b, err := io.ReadAll(io.LimitReader(resp.Body, 64))
		if err = errors.Join(err, resp.Body.Close()); err != nil {
			return err
		}
		seen[string(b)]++
	}
	return json.NewEncoder(out).Encode(seen)
}
