package endpoint

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"time"

	"github.com/kubeveil/kubeveil/e2e/bench/service/openloop"
)

// Ports of Serve. Services have the same ports.
const (
	PortHTTP = 8080
	PortEcho = 9000
)

// Serve runs an endpoint until ctx is done. On PortHTTP it answers HTTP requests with an empty
// body, and /who with its name. On PortEcho it returns each byte and datagram that it receives.
func Serve(ctx context.Context, name string) error {
	web := http.NewServeMux()
	web.HandleFunc("/", func(http.ResponseWriter, *http.Request) {})
	web.HandleFunc("/who", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, name) })
	errs := make(chan error, 3)
	for port, fn := range map[int]func(net.Listener) error{
		PortHTTP: func(l net.Listener) error { return (&http.Server{Handler: web}).Serve(l) },
		PortEcho: openloop.Echo,
	} {
		l, err := net.Listen("tcp4", fmt.Sprintf(":%d", port))
		if err != nil {
			return err
		}
		go func() { errs <- fn(l) }()
	}
	c, err := net.ListenPacket("udp4", fmt.Sprintf(":%d", PortEcho))
	if err != nil {
		return err
	}
	go func() { errs <- openloop.EchoDatagrams(c) }()

	select {
	case <-ctx.Done():
		return nil
	case err := <-errs:
		return err
	}
}

// Requests is the number of requests of Who. The probability that none of them reaches one of three
// endpoints is 10^-10.
const Requests = 60

// Who requests the name of the server at addr by HTTP, over a new connection each time. It prints a
// JSON object with the number of answers from each server, keyed by name.
func Who(ctx context.Context, addr string, out io.Writer) error {
	to, err := netip.ParseAddrPort(addr)
	if err != nil {
		return err
	}
	client := http.Client{Timeout: 5 * time.Second,
		Transport: &http.Transport{DisableKeepAlives: true}}
	seen := map[string]int{}
	for range Requests {
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
