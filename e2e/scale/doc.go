// Package scale shows that a node's services follow an API server in all of its life, at a tenth of
// the size of a large cluster: 1,000 services with 100,000 endpoints.
//
//	source (test) ─► apifeed ─► servicenode, another process ─► pinned maps
//	      └──────────────── compared, entry by entry ──────────────┘
//
// The test changes the objects, cuts the node off, kills its process midway through a list, and
// sends what no API server sends. Each step ends when the maps hold exactly what the objects ask
// for, which the test computes by itself.
//
// Start reading at TestServicesFollowTheAPIServer.
package scale
