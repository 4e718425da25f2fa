"""Steps of whole workloads (language models, vision, graphs, optimisers) as users write them, none of them an example."""
