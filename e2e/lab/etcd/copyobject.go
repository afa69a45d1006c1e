package etcd

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
)

// CopyObject copies the object with the key prefix+name to keys with the names in copies. In each
// copy, the new name replaces the original name; both must have the same length. If copies contains
// name itself, the object is only written again. It lets a lab have many objects, each of which the
// API server would need seconds to admit.
func (s *Server) CopyObject(ctx context.Context, prefix, name string, copies ...string) error {
	var found struct {
		Kvs []struct {
			Value []byte `json:"value"`
		} `json:"kvs"`
	}
	if err := s.ask(ctx, "range", map[string]any{"key": []byte(prefix + name)},
		&found); err != nil {
		return err
	}
	if len(found.Kvs) != 1 {
		return fmt.Errorf("etcd has %d objects %s%s", len(found.Kvs), prefix, name)
	}

	for _, to := range copies {
		if len(to) != len(name) {
			return fmt.Errorf("copy %s to %s: names differ in length", name, to)
		}
		value := bytes.ReplaceAll(found.Kvs[0].Value, []byte(name), []byte(to))
		if err := s.ask(ctx, "put", map[string]any{"key": []byte(prefix + to), "value": value},
			&struct{}{}); err != nil {
			return err
		}
	}
	return nil
}

// DeleteObjects deletes the objects with the keys prefix+name, without finalizers and without the
// API server.
func (s *Server) DeleteObjects(ctx context.Context, prefix string, names ...string) error {
	for _, name := range names {
		if err := s.ask(ctx, "deleterange", map[string]any{"key": []byte(prefix + name)},
			&struct{}{}); err != nil {
			return err
		}
	}
	return nil
}

// Compact removes all revisions before the present one. A watch from an earlier revision then fails.
func (s *Server) Compact(ctx context.Context) error {
	var now struct {
		Header struct {
			Revision string `json:"revision"`
		} `json:"header"`
	}
	if err := s.ask(ctx, "range", map[string]any{"key": []byte("/")}, &now); err != nil {
		return err
	}
	return s.ask(ctx, "compaction", map[string]any{"revision": now.Header.Revision,
		"physical": true}, &struct{}{})
}

// ask sends a request to etcd's JSON gateway and decodes the answer
// (https://etcd.io/docs/v3.6/dev-guide/api_grpc_gateway).
func (s *Server) ask(ctx context.Context, verb string, question, answer any) error {
	body, err := json.Marshal(question)
	if err != nil {
		return err
	}
	url := fmt.Sprintf("http://127.0.0.1:%d/v3/kv/%s", Port, verb)
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, addr string) (conn net.Conn, err error) {
			return s.Dial(ctx, network, addr)
		}}}
	resp, err := client.Do(r)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }() // the error does not matter after a complete read
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("etcd: %s %s", verb, resp.Status)
	}
	return json.NewDecoder(resp.Body).Decode(answer)
}
