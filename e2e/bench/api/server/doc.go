// Package server has the API servers in memory that the suite measures, and two proxies in front of
// them. One is a TCP proxy; the other has the shape of KubeGateway.
//
// Each answer names the server and the user as which the server authenticated the client, so that
// clients can check it. Start reading at Serve.
package server
