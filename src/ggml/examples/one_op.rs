//! The smallest graph: one op over two inputs. Run it with `cargo run -p nextn-ggml --example one_op`.
//! Next: `one_layer.rs`, which adds weights.

use ggml::{Data, Device, Dtype, Error, Executor, Name, WeightsBuilder};

fn main() -> Result<(), Error> {
    // An executor computes over one model's weights on their device. Here there are none.
    let weights = WeightsBuilder::new(vec![]).build(Device::cpu()?)?;
    let mut executor = Executor::new(weights, 1)?;

    // ggml writes shapes fastest dimension first: `a` is 2 rows of 3, `b` is 1 row of 3.
    let a = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
    let b = [10.0, 20.0, 30.0];
    let inputs = [(Name("a", 0), Data::F32(&a)), (Name("b", 0), Data::F32(&b))];

    // The closure runs when no graph of this key is kept: `run` with the same key again only brings new inputs.
    let build = |g: &ggml::Graph<'_>| {
        let a = g.input("a", Dtype::F32, [3, 2, 1, 1]);
        let b = g.input("b", Dtype::F32, [3, 1, 1, 1]);
        // ggml's convention: rows of `a` against rows of `b`, so [3, 2] and [3, 1] give [2, 1].
        g.output("y", g.mul_mat(a, b));
    };
    let mut y = Vec::new();
    executor.run(&"products", 16, build, &inputs)?.f32("y", &mut y)?;
    println!("y = {y:?}");
    assert_eq!(y, [140.0, 320.0]);

    // A wrong shape is an error that names the op and, inside a model, the layer. It never ends the process.
    let wrong = executor.run(
        &"wrong",
        16,
        |g| {
            let a = g.input("a", Dtype::F32, [3, 2, 1, 1]);
            let b = g.input("b", Dtype::F32, [2, 1, 1, 1]);
            g.output("y", g.mul_mat(a, b));
        },
        &inputs,
    );
    println!("{}", wrong.map(drop).expect_err("3 elements do not fit 2"));
    Ok(())
}
